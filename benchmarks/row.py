"""What benchmarks report: rows, each a comparison measured once; then comparisons, with their spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import assert_never

__all__ = ["Comparison", "Growth", "Kind", "Limit", "Record", "Row", "Skipped", "compared"]

_TIMES = ("s", "ms", "µs")


class Kind(Enum):
    """What is judged of a row: a ratio with what stands beside it, or our own figure."""

    COST = "our figure divided by the other one; less is better"
    SPEED = "how many times as fast as the other; more is better"
    LESS = "our own figure; less is better"
    MORE = "our own figure; more is better"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison, measured once.

    `peer` says what ours stands beside, `reason` why the goal is missed where it is, `note` what else was seen.
    `ended` is set where the peer was ended before it was done, so that it would have taken longer than `theirs`.
    """

    what: str
    kind: Kind
    unit: str
    ours: float
    peer: str = ""
    theirs: float | None = None
    goal: float | None = None
    reason: str = ""
    note: str = ""
    ended: bool = False

    @property
    def value(self) -> float:
        """The figure that is judged."""
        match self.kind:
            case Kind.COST:
                return self.ours / self._theirs
            case Kind.SPEED:
                return self._theirs / self.ours if self.unit in _TIMES else self.ours / self._theirs
            case Kind.LESS | Kind.MORE:
                return self.ours
            case _:
                assert_never(self.kind)

    @property
    def _theirs(self) -> float:
        if self.theirs is None:
            raise ValueError(f"{self.what}: a ratio needs the figure of a peer")
        return self.theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Something that a side cannot do at all, as was seen in the run or is known of it."""

    who: str
    cannot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that was not measured, with the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How something grows by something else, of which each point has ten times as much as the one before."""

    of: str
    unit: str
    by: str
    points: tuple[tuple[float, float], ...]

    @property
    def exponent(self) -> float:
        """That of the last decade: 1 in proportion, 0 where it does not grow."""
        (x, y), (to_x, to_y) = self.points[-2:]
        return math.log(to_y / y) / math.log(to_x / x)

    @property
    def text(self) -> str:
        """The points in words."""
        return ", ".join(f"{x:g}: {y:.3g} {self.unit}" for x, y in self.points)


Record = Row | Limit | Skipped | Growth


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same row, measured in every repetition."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """The row of the first repetition: what does not change from one to the next stands there."""
        return self.rows[0]

    @property
    def ours(self) -> float:
        """The median of our figure."""
        return median(row.ours for row in self.rows)

    @property
    def theirs(self) -> float | None:
        """The median of the peer's figure, or None without a peer."""
        known = [row.theirs for row in self.rows if row.theirs is not None]
        return median(known) if known else None

    @property
    def value(self) -> float:
        """The median of the figure that is judged."""
        return median(row.value for row in self.rows)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest figure that is judged."""
        values = [row.value for row in self.rows]
        return min(values), max(values)

    @property
    def ended(self) -> bool:
        """Whether the peer was ended in a repetition, so that the ratio is at least this."""
        return any(row.ended for row in self.rows)

    @property
    def is_ratio(self) -> bool:
        """Whether a ratio is judged, and not our figure alone."""
        return self.first.kind in (Kind.COST, Kind.SPEED)

    @property
    def at_most(self) -> bool:
        """Whether less is better, so that the goal is the most allowed."""
        return self.first.kind in (Kind.COST, Kind.LESS)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the goal, or None without one."""
        goal = self.first.goal
        if goal is None:
            return None
        return self.value <= goal if self.at_most else self.value >= goal


def compared(rows: list[Row]) -> list[Comparison]:
    """Gather the repetitions of each row, in the order in which they were first seen."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.what, row.peer, row.unit), []).append(row)
    return [Comparison(tuple(same)) for same in found.values()]
