"""What a reproducer of an operator that is not what it says needs: the one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchsan.checks.exhibit_graph import given_tensor, operator_call, plain
from torchsan.checks.exhibits import Keep
from torchsan.records import Exhibit, Finding, Given
from torchsan.torch_internals.fakes import known_number
from torchsan.torch_internals.operators import undisturbed

__all__ = ["exhibit_of_call"]


def exhibit_of_call(
    overload: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    finding: Finding,
    keep: Keep,
    config: Mapping[str, Any],
) -> Exhibit:
    """Return the call by itself. Tensors without data are given by their metadata."""
    inputs: list[Given] = []
    known: dict[int, str] = {}

    def given(t: torch.Tensor) -> Any:
        if id(t) not in known:
            known[id(t)] = f"x{len(inputs)}"
            inputs.append(_given(known[id(t)], t, keep))
        return {"node": known[id(t)]}

    with undisturbed():
        words = [plain(a, given, known_number) for a in args]
        named = {k: plain(v, given, known_number) for k, v in kwargs.items()}
        call = operator_call("result", overload, words, named)
    return Exhibit(
        finding=finding.id,
        check=finding.check,
        nodes=(call,),
        inputs=tuple(inputs),
        outputs=("result",),
        suspects=("result",),
        grad=any(g.requires_grad for g in inputs),
    )


def _given(name: str, t: torch.Tensor, keep: Keep) -> Given:
    if type(t) in (torch.Tensor, torch.nn.Parameter):
        return given_tensor(name, t, keep)
    return Given(
        name=name,
        dtype=str(t.dtype).removeprefix("torch."),
        size=tuple(known_number(n) for n in t.shape),
        stride=tuple(known_number(n) for n in t.stride()),
        requires_grad=t.requires_grad,
    )
