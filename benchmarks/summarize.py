"""Summaries of tensors.

`torchsan.summarize` of 256 MB of float32 (64 MB with `--quick`): minimum, maximum, mean, standard deviation, and the
counts of NaN, infinity and zero; beside torch's own reductions. The aim beyond the first goal is 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.row import Kind, Record, Row
from benchmarks.timing import best, in_turns
from torchsan.tensors import summarize

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3

_ROUNDS = 4


def measure(quick: bool) -> Iterator[Record]:
    """Measure bandwidths, in turns."""
    x = torch.randn((64 if quick else 256) << 18, generator=torch.Generator().manual_seed(0))
    zeros = x.relu()
    least = in_turns(
        {
            "sum": x.sum,
            "summarize": lambda: summarize(x),
            "zeros": lambda: summarize(zeros),
            "each": lambda: _one_by_one(x),
        },
        2 if quick else _ROUNDS,
        seconds=0.5,
    )
    speed = {name: x.nbytes / 1e9 / seconds for name, seconds in least.items()}
    for what, name in (("summarize", "summarize"), ("summarize of a tensor half zeros", "zeros")):
        yield Row(
            what=what,
            kind=Kind.SPEED,
            unit="GB/s",
            ours=speed[name],
            peer=f"`x.sum()`, {torch.get_num_threads()} threads",
            theirs=speed["sum"],
            goal=0.35 if name == "summarize" else None,
        )
    yield Row(
        what="summarize",
        kind=Kind.SPEED,
        unit="GB/s",
        ours=speed["summarize"],
        peer="`mean`, `min`, `max`, `std` of `x.float()`, one by one",
        theirs=speed["each"],
        goal=3,
    )
    small = torch.randn(64)
    yield Row(what="summarize of 64 elements", kind=Kind.LESS, unit="µs", ours=best(lambda: summarize(small)) * 1e6)


def _one_by_one(x: torch.Tensor) -> None:
    wide = x.float()
    _ = wide.mean(), wide.min(), wide.max(), wide.std()
