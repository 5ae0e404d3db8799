"""What a reproducer of a finding is made from: calls of operators, and the tensors that they were given.

Data only. Operators are named, never held; arguments are plain values, and where JSON has none they are marked:
`{"node": name}` the value of a node or an input, `{"dtype": "float32"}`, `{"device": "cpu"}`, `{"layout": "strided"}`,
`{"memory_format": "contiguous_format"}`, `{"float": "inf"}`, `{"complex": [re, im]}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchsan.records.finding import Check

__all__ = ["Exhibit", "Given", "OperatorCall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One tensor that the calls begin with.

    `stored` is the name of its values in the recording's store. Inputs with the same `base` share memory: `stored` is
    then the whole of it, in one dimension, in which `size`, `stride` and `offset` find the input. `fill` says what to
    make the values from where there are none, or none are needed: `full VALUE`, `randn SEED`, `randint LOW HIGH SEED`.
    """

    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    stored: str | None = None
    base: str | None = None
    fill: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One call: `op` as `aten.amin.default`, or `getitem` for one of several results."""

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """Enough to run again what a finding is about. `suspects` are the nodes that it blames.

    `earlier` are the inputs of calls that came before the one with the finding. `backward`: gradients are taken, too.
    `config` are settings of Inductor that were not the default. `notes` say what was left out, and why.
    """

    finding: str
    check: Check
    nodes: tuple[OperatorCall, ...]
    inputs: tuple[Given, ...]
    outputs: tuple[str, ...]
    suspects: tuple[str, ...] = ()
    earlier: tuple[tuple[Given, ...], ...] = ()
    backend: str = "inductor"
    dynamic: bool = False
    backward: bool = False
    grad: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
