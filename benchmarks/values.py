"""What a checked step of training costs: `--check values --calls all`.

A language model of 24.9 million parameters (10 with `--quick`), forward and backward; every launch of every step is
replayed, in eager and in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import torchsan
from benchmarks.models import model_and_tokens
from benchmarks.row import Kind, Record, Row
from benchmarks.timing import best

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3


def measure(quick: bool) -> Iterator[Record]:
    """Measure an eager step, then a compiled and checked one."""
    model, tokens = model_and_tokens(layers=1 if quick else 4)

    def step(call: Any) -> None:
        model.zero_grad()
        call(tokens).backward()

    step(model)
    eager = best(lambda: step(model), seconds=2 if quick else 5)
    with torchsan.session(check="values", calls="all") as run:
        compiled = torch.compile(model)
        step(compiled)
        checked = best(lambda: step(compiled), seconds=4 if quick else 10)
    note = f"{run.coverage.buffers_checked} buffers checked, {len(run.findings)} findings"
    yield Row(
        what="a compiled and checked step",
        kind=Kind.COST,
        unit="s",
        ours=checked,
        peer="eager, not checked",
        theirs=eager,
        goal=6,
        reason="Every launch is computed twice more, in eager and in float64, and compared.",
        note=note,
    )
