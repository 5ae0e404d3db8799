"""What a checked step of training costs: `--check values --calls all`.

Language models, forward and backward: one of 24.9 million parameters (10 with `--quick`) beside eager, and a small one
of 2 layers of width 320 beside the same compiled step that nobody checks. Every launch of every step is launched again
and replayed, in eager and, where bits differ, in float64 and with random last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import torchsan
from benchmarks.models import LanguageModel, model_and_tokens, unwatched
from benchmarks.row import Kind, Record, Row
from benchmarks.timing import in_turns

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3

_REASON = (
    "Every launch is repeated and computed again in eager; where bits differ also in float64, and up to four times "
    "with random last bits."
)


def measure(quick: bool) -> Iterator[Record]:
    """Measure an eager step, a compiled one and one that is checked, in turns."""
    rounds = 2 if quick else 5
    large = model_and_tokens(layers=1 if quick else 4)
    yield _beside("eager, not checked", *large, rounds, goal=3, eager=True)
    torch.manual_seed(0)
    small = LanguageModel(width=320, vocabulary=1024, layers=2)
    tokens = torch.randint(0, 1024, (4, 128))
    yield _beside("small model, compiled, not checked", small, tokens, rounds, goal=5, eager=False)


def _beside(peer: str, model: LanguageModel, tokens: torch.Tensor, rounds: int, *, goal: float, eager: bool) -> Row:
    def step(call: Any) -> None:
        model.zero_grad()
        call(tokens).backward()

    with torchsan.session(check="values", calls="all") as run:
        compiled = torch.compile(model)
        step(compiled)  # It compiles.
        plain = (lambda: step(model)) if eager else unwatched(lambda: step(compiled))
        works = {"plain": plain, "checked": lambda: step(compiled)}
        in_turns(works, 1)
        least = in_turns(works, rounds)
    return Row(
        what="a compiled and checked step",
        kind=Kind.COST,
        unit="s",
        ours=least["checked"],
        peer=peer,
        theirs=least["plain"],
        goal=goal,
        reason=_REASON,
        note=f"{run.coverage.buffers_checked} buffers checked, {len(run.findings)} findings",
    )
