"""torchsan.summarize against torch's own reductions, on 256 MB of float32."""

from __future__ import annotations

import torch

from benchmarks.row import Row, best, table
from torchsan.tensors import summarize

__all__ = ["main", "run"]

_ROUNDS = 4


def _one_by_one(x: torch.Tensor) -> None:
    wide = x.float()
    _ = wide.mean(), wide.min(), wide.max(), wide.std()


def run(megabytes: int = 256) -> list[Row]:
    """Measure, in turns so that a busy moment hits all alike, and return the best of each."""
    x = torch.randn((megabytes << 20) // 4, generator=torch.Generator().manual_seed(0))
    zeros = x.relu()
    works = {
        "sum": lambda: x.sum(),
        "summarize": lambda: summarize(x),
        "relu": lambda: summarize(zeros),
        "each": lambda: _one_by_one(x),
    }
    least = dict.fromkeys(works, float("inf"))
    for _ in range(_ROUNDS):
        for name, work in works.items():
            least[name] = min(least[name], best(work, seconds=0.5))
    size = x.nbytes / 1e9
    small = torch.randn(64)
    return [
        Row(what=f"x.sum(), {torch.get_num_threads()} threads", value=size / least["sum"], unit="GB/s"),
        Row(what="summarize(x)", value=size / least["summarize"], unit="GB/s"),
        Row(what="summarize(x.relu()), half zeros", value=size / least["relu"], unit="GB/s"),
        Row(what="mean, min, max, std of x.float(), one by one", value=size / least["each"], unit="GB/s"),
        Row(what="bandwidth of summarize / that of sum", value=least["sum"] / least["summarize"], unit="×", goal=0.35),
        Row(what="speed of summarize / that of one by one", value=least["each"] / least["summarize"], unit="×", goal=3),
        Row(what="summarize of 64 elements", value=best(lambda: summarize(small)) * 1e6, unit="µs"),
    ]


def main() -> None:
    """Print the table."""
    print(table("summarize, 256 MB of float32 (aim for the first ratio: 0.8)", run()))
