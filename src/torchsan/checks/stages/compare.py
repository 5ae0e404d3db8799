"""Whether two runs of a program gave the same: their results, what they left in the inputs, what aliases what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.records import Kind
from torchsan.reference.execute import Results
from torchsan.reference.judge import Judgement, Outcome, agrees, judge

_FEW, _MANY = 3, 16
"""How many nudged runs at first, and how many before something is called wrong."""
_KINDS = {Outcome.NON_FINITE: Kind.NON_FINITE, Outcome.IMPRECISE: Kind.PRECISION_LOSS}
_FAR = 1e-2
_SAME = 1e-7
"""Two float64 results this close are one: constants are often rounded to float32 on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One result that differs, and how. `judgement` is there for values."""

    name: str
    kind: Kind
    message: str
    judgement: Judgement | None = None
    actual: torch.Tensor | None = None
    expected: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What rounding can do to the results: a run in the program's dtypes, one in float64, and nudged ones on demand."""

    eager: Results
    exact: Results | None
    nudged: Callable[[int], Sequence[Results]]


def same(a: Results, b: Results) -> bool:
    """Whether they differ by no more than the last bits of the results themselves."""
    if structural(a, b) or a.tensors.keys() != b.tensors.keys():
        return False
    return all(agrees(x, y) for x, y in ((_or_zeros(a, b, n), _or_zeros(b, a, n)) for n in a.tensors) if _both(x, y))


def structural(actual: Results, expected: Results, *, dtypes: bool = True) -> list[Difference]:
    """What differs in kind: other shapes or dtypes, other numbers, other aliases of inputs."""
    found = []
    for name in expected.tensors:
        a, e = actual.tensors.get(name), expected.tensors[name]
        if a is None or e is None:
            continue
        if a.shape != e.shape or (dtypes and a.dtype != e.dtype):
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


def suspects(actual: Results, expected: Results) -> list[str]:
    """The results of two float64 runs that are not the same number. Shapes are equal, or the names are left out."""
    found = []
    for name in expected.tensors:
        a, e = _or_zeros(actual, expected, name), _or_zeros(expected, actual, name)
        if not _both(a, e) or a.shape != e.shape or a.numel() == 0:
            continue
        if not e.is_floating_point() and not e.is_complex():
            different = bool((a != e).any())
        else:
            wide = e.to(torch.complex128 if e.is_complex() else torch.float64)
            distance = (a.to(wide.dtype) - wide).abs()
            finite = torch.isfinite(wide)
            size = torch.where(finite, wide.abs(), torch.zeros_like(distance))
            allowed = size * _SAME + float(size.square().mean().sqrt()) * _SAME
            alike = (distance <= allowed) | (a == e) | (torch.isnan(a) & torch.isnan(e))
            different = not bool(alike.all())
        if different:
            found.append(name)
    return found


def as_near(actual: Results, eager: Results, exact: Results, name: str) -> bool:
    """Whether a result lies about as near to float64's as eager's does, taken as a whole.

    Enough where the graphs are known to be right, and far cheaper than finding out what rounding can do.
    """
    a, e, c = (_or_zeros(r, eager, name) for r in (actual, eager, exact))
    if not (_both(a, e) and isinstance(c, torch.Tensor)) or not a.is_floating_point() or a.shape != c.shape:
        return False
    if a.numel() == 0:
        return True
    c = c.to(torch.float64)
    own, other = float((a - c).abs().max()), float((e - c).abs().max())
    # Not a number compares as false, and so is never near.
    return own <= 8 * other + 16 * torch.finfo(a.dtype).eps * float(c.abs().max())


def is_far(actual: Results, exact: Results, name: str) -> bool:
    """Whether a result is, as a whole, another one than float64's and not a less precise one."""
    a, c = _or_zeros(actual, exact, name), _or_zeros(exact, actual, name)
    if not _both(a, c) or not a.is_floating_point() or a.shape != c.shape:
        return True
    c = c.to(torch.float64)
    return not float((a - c).norm()) <= _FAR * float(c.norm())


def wrong(actual: Results, names: Sequence[str], noise: Noise) -> list[Difference]:
    """Those of the named results that rounding cannot explain."""
    found = []
    for name in names:
        difference = _judged(name, actual, noise)
        if difference is not None:
            found.append(difference)
    return found


def _judged(name: str, actual: Results, noise: Noise) -> Difference | None:
    eager = _or_zeros(noise.eager, actual, name)
    a = _or_zeros(actual, noise.eager, name)
    exact = _or_zeros(noise.exact, noise.eager, name) if noise.exact is not None else eager
    if not _both(a, eager) or not isinstance(exact, torch.Tensor) or not a.shape == eager.shape == exact.shape:
        return None
    a = a.to(eager.dtype)
    judgement = None
    for count in (_FEW, _MANY):
        others = [t for r in noise.nudged(count) if _fits(t := _or_zeros(r, noise.eager, name), eager)]
        judgement = judge(a, eager, exact, others)
        if judgement.outcome is Outcome.RIGHT:
            return None
    assert judgement is not None
    kind = _KINDS.get(judgement.outcome, Kind.WRONG_VALUES)
    return Difference(name=name, kind=kind, message="", judgement=judgement, actual=a, expected=eager)


def _fits(t: Any, like: torch.Tensor) -> bool:
    return isinstance(t, torch.Tensor) and t.shape == like.shape


def _or_zeros(results: Results, other: Results, name: str) -> Any:
    """No gradient is a gradient of zeros."""
    found, like = results.tensors.get(name), other.tensors.get(name)
    if found is None and like is not None and name.startswith("gradient"):
        return torch.zeros_like(like)
    return found


def _both(a: Any, b: Any) -> bool:
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)


def _meta(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
