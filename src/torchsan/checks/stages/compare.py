"""Whether two runs of a program gave the same: their results, what they left in the inputs, what aliases what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.records import Kind
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import Results
from torchsan.reference.judge import Judgement, Outcome, agrees, differ_in_float64, same_in_float64, settle

_KINDS = {Outcome.NON_FINITE: Kind.NON_FINITE, Outcome.IMPRECISE: Kind.PRECISION_LOSS}

Rerun = Callable[[Arithmetic, int], Results]
"""Runs a program again in an arithmetic, with the noise of a seed. Raises Unavailable where it has no meaning in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One result that differs, and how. `judgement` and `actual` are there for values."""

    name: str
    kind: Kind
    message: str = ""
    judgement: Judgement | None = None
    actual: torch.Tensor | None = None


def same(a: Results, b: Results) -> bool:
    """Whether they differ by no more than the last bits of the results themselves."""
    if structural(a, b) or a.tensors.keys() != b.tensors.keys():
        return False
    pairs = (pair(a, b, name) for name in a.tensors)
    return all(agrees(x, y) for x, y in pairs if x is not None and y is not None)


def structural(actual: Results, expected: Results, *, dtypes: bool = True) -> list[Difference]:
    """What differs in kind: other shapes or dtypes, other numbers, other aliases of inputs."""
    found = []
    for name in expected.tensors:
        a, e = actual.tensors.get(name), expected.tensors[name]
        if a is not None and e is not None and (a.shape != e.shape or (dtypes and a.dtype != e.dtype)):
            message = f"{name} is {_meta(a)}, not {_meta(e)}"
            found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
    for name, value in expected.others.items():
        other = actual.others.get(name)
        if isinstance(value, int) and isinstance(other, int) and other != value:
            message = f"{name} is {other}, not {value}"
            found.append(Difference(name=name, kind=Kind.WRONG_VALUES, message=message))
    for output, source in sorted(actual.aliases - expected.aliases):
        message = f"{output} shares memory with {source}, which it does not in the program"
        found.append(Difference(name=output, kind=Kind.UNDECLARED_ALIAS, message=message))
    for output, source in sorted(expected.aliases - actual.aliases):
        message = f"{output} does not share memory with {source}, which it does in the program"
        found.append(Difference(name=output, kind=Kind.METADATA_MISMATCH, message=message))
    return found


def apart_in_float64(actual: Results, expected: Results) -> list[str]:
    """The results of two float64 runs that are not the same number. Those of other shapes are left out."""
    pairs = ((name, *pair(actual, expected, name)) for name in expected.tensors)
    return [
        n for n, a, e in pairs if a is not None and e is not None and a.shape == e.shape and not same_in_float64(a, e)
    ]


def wrong(actual: Results, names: Sequence[str], rerun: Rerun) -> list[Difference]:
    """Those of the named results that rounding cannot explain; `rerun` is asked for what they should be."""
    expected = rerun(Arithmetic.EAGER, 0)
    found = []
    for name in names:
        a, eager = pair(actual, expected, name)
        if a is None or eager is None:
            continue
        a = a.to(eager.dtype)

        def run(arithmetic: Arithmetic, *, seed: int = 0, name: str = name, eager: torch.Tensor = eager) -> Any:
            return eager if arithmetic is Arithmetic.EAGER else pair(rerun(arithmetic, seed), expected, name)[0]

        try:
            judgement = settle(run, a)
        except Unavailable:
            continue
        if judgement.outcome is not Outcome.RIGHT:
            kind = _KINDS.get(judgement.outcome, Kind.WRONG_VALUES)
            found.append(Difference(name=name, kind=kind, judgement=judgement, actual=a))
    return found


def wrong_in_float64(actual: Results, expected: Results, rerun: Rerun) -> list[Difference]:
    """The results of two float64 runs that are not the same number, nor apart by constants rounded to float32."""
    found = []
    for name in apart_in_float64(actual, expected):
        a, e = pair(actual, expected, name)
        assert a is not None
        assert e is not None

        def run(arithmetic: Arithmetic, *, seed: int = 0, name: str = name) -> Any:
            return pair(rerun(arithmetic, seed), expected, name)[0]

        judgement = differ_in_float64(run, a, e)
        if judgement.outcome is not Outcome.RIGHT:
            kind = _KINDS.get(judgement.outcome, Kind.WRONG_VALUES)
            found.append(Difference(name=name, kind=kind, judgement=judgement, actual=a))
    return found


def pair(a: Results, b: Results, name: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """One result of two runs. No gradient is a gradient of zeros, if the other run has one."""
    x, y = a.tensors.get(name), b.tensors.get(name)
    if name.startswith("gradient"):
        if x is None and y is not None:
            x = torch.zeros_like(y)
        elif y is None and x is not None:
            y = torch.zeros_like(x)
    return x, y


def _meta(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
