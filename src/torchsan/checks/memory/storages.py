"""The ledger of one call: which variable lies in which storage, and whether storages live and die as planned.

Keyed by storage, because a storage that is reused outlives its first name.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from torchsan.checks.memory.guards import Guard
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.records import BufferLife, BytesByLine, Direction, GraphId, MemoryCall, NamedBytes, encode
from torchsan.torch_internals.operators import StorageRef, storage_key
from torchsan.torch_internals.wrapper import Launch


class Origin(Enum):
    """Where a storage comes from."""

    PROGRAM = "allocated by the program"
    RESULT = "the result of an operator"
    GIVEN = "an input"


@dataclass(slots=True, eq=False)
class Block:
    """One storage. `names` are the variables that lie in it now; `name` is the first it had."""

    ref: StorageRef
    name: str
    function: str
    nbytes: int
    pointer: int
    dtype: torch.dtype
    origin: Origin
    names: set[tuple[str, str]] = field(default_factory=set)
    guard: Guard | None = None
    gaps: torch.Tensor | None = None
    """Positions between its elements, where its strides leave room."""
    layout: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """The size and strides that it was allocated with."""
    settled: bool = True
    """Whether every element is known to have been written, or need not be."""
    certain: torch.Tensor | None = None
    """Positions that hold the pattern because a kernel wrote it there."""
    last_use: Launch | None = None
    left_by: Launch | None = None
    """The launch that wrote it and left elements unwritten."""
    verified: bool = False
    """Whether that launch was run twice to be sure."""
    excused: bool = False
    """Whether something outside of the program may keep it: its caller, or an operator that was given it to keep."""
    writes: list[tuple[int, Launch, str]] = field(default_factory=list)
    bytes_planned: bool = True
    bytes_live: bool = True


class StorageTable:
    """The storages of one call and the variables that lie in them. Several functions share it: subgraphs too."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self._names: dict[tuple[str, str], tuple[Block, ...]] = {}
        self.freed: dict[tuple[str, str], Launch | None] = {}

    def bind(self, function: str, name: str, value: Any, origin: Origin) -> tuple[Block, ...]:
        """`name` now holds `value`, a tensor or a list of them. Return the storages, new ones with that origin."""
        key = (function, name)
        blocks = tuple(dict.fromkeys(self._block(function, name, t, origin) for t in tensors_in(value)))
        self._unbind(key)
        self._names[key] = blocks
        for block in blocks:
            block.names.add(key)
        self.freed.pop(key, None)
        return blocks

    def find(self, function: str, name: str) -> tuple[Block, ...]:
        """The storages that `name` lies in."""
        return self._names.get((function, name), ())

    def free(self, function: str, names: Iterable[str]) -> Iterator[Block]:
        """The names are gone. Yield the storages that no variable lies in any more."""
        for name in names:
            blocks = self._unbind((function, name))
            self.freed[function, name] = blocks[0].last_use if blocks else None
            yield from (b for b in blocks if not b.names)

    def bound(self, function: str) -> dict[str, tuple[Block, ...]]:
        """The variables of a function that lie in storages now."""
        return {name: blocks for (f, name), blocks in self._names.items() if f == function}

    def holding(self, value: Any) -> Iterator[Block]:
        """The known storages that a value lies in."""
        for tensor in tensors_in(value):
            block = self.blocks.get(storage_key(tensor))
            if block is not None:
                yield block

    def drop(self, block: Block) -> None:
        """Forget a storage that died."""
        self.blocks.pop(block.ref.key, None)

    def _unbind(self, key: tuple[str, str]) -> tuple[Block, ...]:
        blocks = self._names.pop(key, ())
        for block in blocks:
            block.names.discard(key)
        return blocks

    def _block(self, function: str, name: str, tensor: torch.Tensor, origin: Origin) -> Block:
        key = storage_key(tensor)
        block = self.blocks.get(key)
        if block is None:
            storage = tensor.untyped_storage()
            block = self.blocks[key] = Block(
                ref=StorageRef(tensor),
                name=name,
                function=function,
                nbytes=storage.nbytes(),
                pointer=storage.data_ptr(),
                dtype=tensor.dtype,
                origin=origin,
            )
        return block


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with a storage in a value: itself, or in its lists."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


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
