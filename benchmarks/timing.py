"""Taking times on a machine that others share: the least of several rounds, in which the candidates take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["best", "in_turns", "timed"]

Work = Callable[[], object]


def timed(work: Work) -> float:
    """Return the seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(work: Work, *, seconds: float = 1.0) -> float:
    """Return the seconds of the fastest of as many runs as begin within `seconds`, one at least."""
    until = time.perf_counter() + seconds
    least = timed(work)
    while time.perf_counter() < until:
        least = min(least, timed(work))
    return least


def in_turns(works: Mapping[str, Work], rounds: int, *, seconds: float = 0.0) -> dict[str, float]:
    """Return the seconds of the fastest run of each; a turn lasts `seconds`, or one run."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            least[name] = min(least[name], best(work, seconds=seconds))
    return least
