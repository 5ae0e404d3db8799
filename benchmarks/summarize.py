"""Summaries of tensors.

`torchsan.summarize` of 256 MB (64 MB with `--quick`) of each dtype: minimum, maximum, mean, standard deviation, and the
counts of NaN, infinity and zero; beside `x.sum()` of the same tensor, which reads it once too.
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
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64)
_REASON = (
    "`x.sum()` adds; this also compares twice, counts and squares in float64, so that it is the processor that sets "
    "the pace where an element is small, and not the memory."
)


def measure(quick: bool) -> Iterator[Record]:
    """Measure bandwidths, in turns."""
    nbytes, rounds = (64 if quick else 256) << 20, 2 if quick else _ROUNDS
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nbytes // 4, generator=generator)
    for dtype in _DTYPES[: 2 if quick else None]:
        y = x[: nbytes // dtype.itemsize].to(dtype) if dtype.itemsize >= 4 else x.to(dtype).repeat(4 // dtype.itemsize)
        yield _beside_sum(f"summarize of {str(dtype).removeprefix('torch.')}", y, rounds, goal=0.85)
    yield _beside_sum("summarize of float32, half of it zero", x.relu(), rounds)
    works = {"summarize": lambda: summarize(x), "each": lambda: _one_by_one(x)}
    least = in_turns(works, rounds, seconds=0.5)
    yield Row(
        what="summarize of float32",
        kind=Kind.SPEED,
        unit="GB/s",
        ours=nbytes / 1e9 / least["summarize"],
        peer="`mean`, `min`, `max`, `std` of `x.float()`, one by one",
        theirs=nbytes / 1e9 / least["each"],
        goal=3,
    )
    small = torch.randn(64)
    yield Row(what="summarize of 64 elements", kind=Kind.LESS, unit="µs", ours=best(lambda: summarize(small)) * 1e6)


def _beside_sum(what: str, x: torch.Tensor, rounds: int, goal: float | None = None) -> Row:
    least = in_turns({"sum": x.sum, "summarize": lambda: summarize(x)}, rounds, seconds=0.5)
    return Row(
        what=what,
        kind=Kind.SPEED,
        unit="GB/s",
        ours=x.nbytes / 1e9 / least["summarize"],
        peer=f"`x.sum()`, {torch.get_num_threads()} threads",
        theirs=x.nbytes / 1e9 / least["sum"],
        goal=goal,
        reason=_REASON if goal else "",
    )


def _one_by_one(x: torch.Tensor) -> None:
    wide = x.float()
    _ = wide.mean(), wide.min(), wide.max(), wide.std()
