"""Whether what is off in one result is off in the results for other data, too, and by the same.

Rounding errors of a long sum are hard to bound and easy to recognise: for other data they are others. What is wrong
with a kernel stays. So a suspicion is put to the launch itself, on more and more data, until Student's t decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

SIGMAS = 7.0
"""How far outside of chance an error must lie that other data cannot tell from chance."""
_ENOUGH = {4: 103.0, 6: 24.0, 8: 14.0, 12: 9.3, 24: 6.5}
"""By how many standard errors the mean over so many data sets must differ from zero: once in a million by chance."""
_MOST = 4


class Steady:
    """Some numbers that were off, as other data show them again."""

    def __init__(self, first: torch.Tensor, *, least: torch.Tensor) -> None:
        """`first` is by how much each was off, `least` by how much it has to be."""
        self._first = first.to(torch.float64)
        self._least = least.to(torch.float64)
        self._fixed = torch.zeros_like(self._first)
        self._seen: list[torch.Tensor] = []

    def add(self, seen: torch.Tensor, fixed: Sequence[torch.Tensor]) -> bool | None:
        """Take in by how much the numbers are off for other data. Return whether one of them is; None if undecided.

        `fixed` is by how much they may be off because of what is rounded the same way for all data: that is seen
        each time, and is not to be taken for an error.
        """
        self._seen.append(seen.to(torch.float64))
        if fixed:
            self._fixed = torch.maximum(self._fixed, torch.stack(list(fixed)).to(torch.float64).square().mean(0).sqrt())
        all_ = torch.stack(self._seen)
        mean, count = all_.mean(0), len(self._seen)
        ratio = mean / self._first
        alike = (ratio > 0.5) & (ratio < 2.0) & (mean.abs() >= torch.maximum(self._least, SIGMAS * self._fixed))
        if not bool(alike.any()):
            return False
        if count not in _ENOUGH:
            return None
        error = all_.std(0) / count**0.5
        if bool((alike & (mean.abs() >= _ENOUGH[count] * error)).any()):
            return True
        return False if count == max(_ENOUGH) else None


class ElementsAgain:
    """What other data say of the elements of a result that were off by more than rounding usually makes them."""

    def __init__(self, actual: torch.Tensor, bad: torch.Tensor, centre: torch.Tensor, width: torch.Tensor) -> None:
        """The result that was judged, which elements are outside, its centre, and the width there."""
        distance = (actual.to(torch.float64) - centre).flatten()
        outside = torch.where(bad.flatten(), distance.abs() / width.flatten(), 0.0).nan_to_num(0, 0, 0)
        self._worst = outside.topk(min(_MOST, int(bad.sum()))).indices
        self._steady = Steady(distance[self._worst], least=2 * width.flatten()[self._worst])

    def add(
        self,
        actual: torch.Tensor,
        run: Callable[..., Any],
        _rounded: Sequence[torch.Tensor],
        fixed: Sequence[torch.Tensor],
    ) -> bool | None:
        """Take in the result for other data. Return whether it is wrong in one of these elements; None if undecided."""
        exact = run(lambda _node, value, _args: value).detach()
        residual, *same = ((t.to(torch.float64) - exact).flatten()[self._worst] for t in (actual, *fixed))
        return self._steady.add(residual, same)
