"""Bytes over time: what a call had alive after each step of the program, at its peak, and because of which line."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torchsan.checks.memory.ledger import Block, Origin
from torchsan.checks.memory.plan import MemoryPlan

__all__ = ["Figures"]

_AT_PEAK = 20
_POINTS = 2000


class Figures:
    """Counts the storages that one call allocates. What it was given counts for itself and not in the peak."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._plan = plan
        self._live: dict[int, Block] = {}
        self.given = 0
        self.allocated = 0
        self.planned = self.actual = 0
        self.planned_peak = self.peak = 0
        self.saved = 0
        self.returned = 0
        self._at_peak: list[Block] = []
        self._timeline: list[tuple[int, int, int]] = []

    def born(self, block: Block) -> None:
        """A storage is new in this call."""
        if block.origin is Origin.GIVEN:
            self.given += block.nbytes
            return
        self._live[block.ref.key] = block
        self.allocated += block.nbytes
        self.planned += block.nbytes
        self.actual += block.nbytes
        self.planned_peak = max(self.planned_peak, self.planned)
        if self.actual > self.peak:
            self.peak = self.actual
            self._at_peak = []

    def released(self, block: Block) -> None:
        """The program gave up its last name for a storage."""
        if block.bytes_planned and block.origin is not Origin.GIVEN:
            block.bytes_planned = False
            self._keep_peak()
            self.planned -= block.nbytes

    def died(self, block: Block) -> None:
        """A storage is gone."""
        if block.bytes_live and block.origin is not Origin.GIVEN:
            block.bytes_live = False
            self._keep_peak()
            self.actual -= block.nbytes
            self._live.pop(block.ref.key, None)

    def step(self, line: int) -> None:
        """The statement at this line of the generated program has run."""
        if len(self._timeline) < _POINTS:
            self._timeline.append((line, self.planned, self.actual))

    def _keep_peak(self) -> None:
        if self.actual == self.peak and not self._at_peak:
            self._at_peak = list(self._live.values())

    def event(self, graph: int, direction: str, call: int) -> dict[str, Any]:
        """The body of the event that goes to the recording."""
        self._keep_peak()
        largest = sorted(self._at_peak, key=lambda b: -b.nbytes)
        by_line: dict[tuple[str, int, str], int] = defaultdict(int)
        for block in largest:
            source = self._plan.sources.get((block.function, block.name))
            by_line[(source.file, source.line, source.module) if source else ("", 0, "")] += block.nbytes
        return {
            "graph": graph,
            "direction": direction,
            "call": call,
            "given": self.given,
            "allocated": self.allocated,
            "planned_peak": self.planned_peak,
            "peak": self.peak,
            "saved": self.saved,
            "returned": self.returned,
            "at_peak": [{"buffer": b.name, "bytes": b.nbytes} for b in largest[:_AT_PEAK]],
            "by_source": [
                {"file": file, "line": line, "module": module, "bytes": n}
                for (file, line, module), n in sorted(by_line.items(), key=lambda item: -item[1])
            ],
            "timeline": [list(point) for point in self._timeline],
        }
