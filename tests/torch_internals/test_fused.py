"""A function of Inductor's pattern matcher tells what it would lower."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from typing import Any

import torch

from torchsan.torch_internals.fused import is_lowered, operators_of

aten = torch.ops.aten
L: dict[Any, Any] = {}
"""Stands for Inductor's table, which the functions look lowerings up in."""
counters: defaultdict[str, Counter[str]] = defaultdict(Counter)


def times(match: str, x: Any, *, by: float) -> Any:
    counters["inductor"][match] += 1
    return L[aten.mul.Tensor](L[aten.neg.default](x), by)


def test_its_operators_are_computed_where_it_would_lower_them_and_nothing_is_counted() -> None:
    called: list[str] = []

    def call(operator: Any, *args: Any) -> Any:
        called.append(str(operator))
        return operator(*args)

    function = functools.wraps(times)(functools.partial(times, "a match"))
    compute = operators_of(function, call)
    assert compute is not None
    assert compute(torch.tensor(3.0), by=2).item() == -6
    assert called == ["aten.neg.default", "aten.mul.Tensor"]
    assert not counters


def test_anything_else_is_not_known() -> None:
    assert operators_of(aten.mm.default, lambda *_: None) is None
    assert operators_of(functools.partial(operators_of, 1), lambda *_: None) is None
    assert not is_lowered(aten.mm.default)
    assert not is_lowered(times)
