"""What a benchmark reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Row", "best", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure, and the one asked for where there is one."""

    what: str
    value: float
    unit: str
    goal: float | None = None

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"   goal ≥ {self.goal:g}: {'met' if self.value >= self.goal else 'missed'}"
        return f"{self.what:<48} {self.value:9.2f} {self.unit:<5}{goal}"


def best(work: Callable[[], object], *, seconds: float | None = None) -> float:
    """Return the seconds that one run of `work` takes: the least of many, since others share the machine."""
    least = float("inf")
    until = time.perf_counter() + (1.0 if seconds is None else seconds)
    while time.perf_counter() < until or least == float("inf"):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return least


def table(title: str, rows: Iterable[Row]) -> str:
    """Return `rows` as text."""
    return "\n".join([title, *(f"  {row}" for row in rows)])
