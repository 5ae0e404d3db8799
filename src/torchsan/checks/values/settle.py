"""Judges a result that differs from eager's by as many replays as it takes."""

from __future__ import annotations

from typing import Protocol

import torch

from torchsan.checks.values.replay import Arithmetic
from torchsan.tensors.judge import Judgement, Outcome, judge

__all__ = ["Run", "settle"]

_FEW, _MANY = 4, 16
"""How many nudged replays at first, and how many before something is called wrong."""


class Run(Protocol):
    """Computes the result again."""

    def __call__(self, arithmetic: Arithmetic, *, seed: int = 0) -> torch.Tensor:
        """Return the result in this arithmetic."""


def settle(run: Run, actual: torch.Tensor, eager: torch.Tensor) -> Judgement:
    """Judge what differs from eager: by float64, then by a few nudged replays, then, if it looks wrong, by many."""
    exact = run(Arithmetic.EXACT)
    nudged: list[torch.Tensor] = []
    for wanted in (1, 2, _FEW, _MANY):
        while len(nudged) < wanted:
            nudged.append(run(Arithmetic.NUDGED, seed=len(nudged) + 1))
        judgement = judge(actual, eager, exact, nudged)
        if judgement.outcome is Outcome.RIGHT:
            break
    return judgement
