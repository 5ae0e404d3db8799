"""What a checked step of training costs: `--check values --calls all`.

A language model of 24.9 million parameters (10 with `--quick`), forward and backward; every launch of every step is
launched again and replayed, in eager and, where bits differ, in float64 and with random last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import torchsan
from benchmarks.models import model_and_tokens
from benchmarks.row import Kind, Record, Row
from benchmarks.timing import in_turns

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3


def measure(quick: bool) -> Iterator[Record]:
    """Measure an eager step and a compiled and checked one, in turns."""
    model, tokens = model_and_tokens(layers=1 if quick else 4)

    def step(call: Any) -> None:
        model.zero_grad()
        call(tokens).backward()

    with torchsan.session(check="values", calls="all") as run:
        compiled = torch.compile(model)
        works = {"eager": lambda: step(model), "checked": lambda: step(compiled)}
        in_turns(works, 1)  # The first round compiles.
        least = in_turns(works, 2 if quick else 5)
    note = f"{run.coverage.buffers_checked} buffers checked, {len(run.findings)} findings"
    yield Row(
        what="a compiled and checked step",
        kind=Kind.COST,
        unit="s",
        ours=least["checked"],
        peer="eager, not checked",
        theirs=least["eager"],
        goal=6,
        reason="Every launch is repeated and computed again in eager; where bits differ also in float64, and up to "
        "four times with random last bits.",
        note=note,
    )
