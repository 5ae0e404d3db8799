"""How far right results lie from eager's, as a rule: what lies no further needs no closer look.

This decides nothing about what is right. A result that is as usual is one that the judge would be asked about for the
same answer as the last times; anything else is put to the judge.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

_FURTHER = (2.0, 4.0)
"""How many times as far as ever before a result may lie: on average, and at its worst element."""
_FURTHER_SAMPLED = (4.0, 32.0)
"""The same where time is short. Of many numbers the worst one varies most, and a closer look costs a hundred others."""
_ONCE = 4.0
"""How many times the dtype's eps a result lies from eager's on average, at most, if it is rounded about once."""


class Usual:
    """The greatest distances of right results from eager's, by what they are results of."""

    def __init__(self, *, rounded_once: bool = False, sampled: bool = False) -> None:
        """With `rounded_once` it learns nothing of results that are further from eager's than rounding takes a number.

        What is lost to cancellation in one place says nothing about another. With `sampled` it allows for more.
        """
        self._rounded_once = rounded_once
        self._further = _FURTHER_SAMPLED if sampled else _FURTHER
        self._known: dict[Hashable, tuple[float, float]] = {}

    def knows(self, of: Hashable) -> bool:
        """Whether a result was judged to be right before."""
        return of in self._known

    def allows(self, of: Hashable, actual: torch.Tensor, eager: torch.Tensor) -> bool:
        """Whether a result is as near to eager's as those that were right."""
        known = self._known.get(of)
        if known is None or actual.shape != eager.shape or actual.dtype != eager.dtype:
            return False
        if _equal(actual, eager):
            return True
        found = _distances(actual, eager)
        # Not a number compares as false, and so is never as usual.
        return found is not None and all(d <= f * k for d, f, k in zip(found, self._further, known, strict=True))

    def learn(self, of: Hashable, actual: torch.Tensor, eager: torch.Tensor) -> None:
        """A result was judged to be right."""
        found = (0.0, 0.0) if _equal(actual, eager) else _distances(actual, eager)
        too_far = found is not None and self._rounded_once and found[0] > _ONCE * _eps(actual)
        if found is not None and not too_far and all(d < float("inf") for d in found):
            known = self._known.get(of, (0.0, 0.0))
            self._known[of] = (max(known[0], found[0]), max(known[1], found[1]))


def _eps(t: torch.Tensor) -> float:
    return torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype is torch.complex32 and b.dtype is torch.complex32:  # torch.equal does not know it
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return torch.equal(a, b)


def _distances(actual: torch.Tensor, eager: torch.Tensor) -> tuple[float, float] | None:
    """The mean and the greatest difference, in units of what the elements are on average; None if it is not one."""
    if not actual.is_floating_point():
        return None
    wide = torch.float64 if actual.dtype is torch.float64 else torch.float32
    size = eager.to(wide).flatten()
    apart = actual.to(wide).flatten() - size
    norm = float(torch.linalg.vector_norm(size))
    if norm == 0:
        return None
    root = size.numel() ** 0.5
    return float(torch.linalg.vector_norm(apart)) / norm, float(apart.abs().max()) * root / norm
