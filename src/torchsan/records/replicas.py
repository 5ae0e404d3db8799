"""What a rank says of tensors that other ranks hold copies of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ReplicaRecord", "StepRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """A parameter, and the ranks that hold the same part of it: they must agree on it to the bit."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step, counted from 0. Digests are in the order of the optimizer's replicas, empty for what is not.

    `before` has those of the parameters that are not what the last step left, all for step 0, and so nearly always
    none; `gradients` is what the step was given; `parameters` what it left.
    """

    optimizer: int
    step: int
    before: tuple[str, ...]
    gradients: tuple[str, ...]
    parameters: tuple[str, ...]
