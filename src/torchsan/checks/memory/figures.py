"""Bytes over time: what a call had alive after each step of the program, at its peak, and because of which line."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from torchsan.checks.memory.ledger import Block, Origin
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.records import BufferLife, BytesByLine, Direction, GraphId, MemoryCall, NamedBytes, encode

__all__ = ["Figures"]

_AT_PEAK = 20
_POINTS = 2000
_LIVES = 2000


@dataclass(slots=True)
class _Life:
    """A BufferLife that is not over."""

    buffer: str
    bytes: int
    born: int
    module: str
    freed: int | None = None
    died: int | None = None


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
        self._lives: list[_Life] = []
        # By storage, not by block: a block holds the guard zones of its storage, which must go when that goes.
        self._life_of: dict[int, _Life] = {}

    def born(self, block: Block) -> None:
        """A storage is new in this call."""
        if block.origin is Origin.GIVEN:
            self.given += block.nbytes
            return
        self._live[block.ref.key] = block
        if len(self._lives) < _LIVES:
            source = self._plan.sources.get((block.function, block.name))
            life = _Life(block.name, block.nbytes, len(self._timeline), source.module if source is not None else "")
            self._lives.append(life)
            self._life_of[block.ref.key] = life
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
            life = self._life_of.get(block.ref.key)
            if life is not None:
                life.freed = len(self._timeline)

    def died(self, block: Block) -> None:
        """A storage is gone."""
        if block.bytes_live and block.origin is not Origin.GIVEN:
            block.bytes_live = False
            self._keep_peak()
            self.actual -= block.nbytes
            self._live.pop(block.ref.key, None)
            life = self._life_of.pop(block.ref.key, None)
            if life is not None:
                life.died = len(self._timeline)

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
        call_ = MemoryCall(
            graph=GraphId(graph),
            direction=Direction(direction),
            call=call,
            given=self.given,
            allocated=self.allocated,
            planned_peak=self.planned_peak,
            peak=self.peak,
            saved=self.saved,
            returned=self.returned,
            at_peak=tuple(NamedBytes(buffer=b.name, bytes=b.nbytes) for b in largest[:_AT_PEAK]),
            by_source=tuple(
                BytesByLine(file=file, line=line, module=module, bytes=n)
                for (file, line, module), n in sorted(by_line.items(), key=lambda item: -item[1])
            ),
            timeline=tuple(self._timeline),
            lives=tuple(BufferLife(**dataclasses.asdict(life)) for life in self._lives),
        )
        body: dict[str, Any] = encode(call_)
        return body
