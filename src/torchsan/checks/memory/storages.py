"""The storages of one call: which variable lies in which, and what they add up to.

Keyed by storage, because a storage that is reused outlives its first name.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from torchsan.checks.memory.plan import MemoryPlan, Name
from torchsan.records import BufferLife, BytesByLine, GraphRef, MemoryCall, NamedBytes, SourceLine, encode
from torchsan.torch_internals.operators import StorageRef, storage_key, tensors_in
from torchsan.torch_internals.wrapper import Launch


class Origin(Enum):
    """Where a storage comes from."""

    PROGRAM = "allocated by the program"
    RESULT = "the result of an operator"
    GIVEN = "an input"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block:
    """One storage as it was when it was first seen. What happens to it later is kept by whoever follows that.

    `function` and `name` are those of the first variable that lay in it.
    """

    ref: StorageRef
    function: str
    name: str
    nbytes: int
    pointer: int
    dtype: torch.dtype
    origin: Origin


class StorageTable:
    """The storages of one call and the variables that lie in them. Several functions share it: subgraphs too."""

    def __init__(self) -> None:
        self.last_use: dict[Block, Launch] = {}
        self.kept_elsewhere: set[Block] = set()
        """What something outside of the program may keep: its caller, or an operator that was given it to keep."""
        self.freed: dict[Name, Launch | None] = {}
        """The variables that are gone, and the last launch that used them."""
        self._blocks: dict[int, Block] = {}
        self._bound: dict[Name, tuple[Block, ...]] = {}
        self._variables: Counter[Block] = Counter()

    def bind(self, function: str, name: str, value: Any, origin: Origin) -> tuple[tuple[Block, ...], list[Block]]:
        """`name` now holds `value`, a tensor or a list of them. Return its storages, and those of them that are new.

        New ones have that origin.
        """
        new: list[Block] = []
        found: dict[Block, None] = {}
        for tensor in stored_tensors(value):
            block = self._blocks.get(storage_key(tensor))
            if block is None:
                storage = tensor.untyped_storage()
                block = self._blocks[storage_key(tensor)] = Block(
                    ref=StorageRef(tensor),
                    function=function,
                    name=name,
                    nbytes=storage.nbytes(),
                    pointer=storage.data_ptr(),
                    dtype=tensor.dtype,
                    origin=origin,
                )
                new.append(block)
            found[block] = None
        self._unbind((function, name))
        self._bound[function, name] = tuple(found)
        self._variables.update(found.keys())
        self.freed.pop((function, name), None)
        return tuple(found), new

    def find(self, function: str, name: str) -> tuple[Block, ...]:
        """The storages that `name` lies in."""
        return self._bound.get((function, name), ())

    def free(self, function: str, names: Iterable[str]) -> list[Block]:
        """The names are gone. Return the storages that no variable lies in any more."""
        found = []
        for name in names:
            blocks = self._unbind((function, name))
            self.freed[function, name] = self.last_use.get(blocks[0]) if blocks else None
            found += [b for b in blocks if not self._variables[b]]
        return found

    def bound(self, function: str) -> dict[str, tuple[Block, ...]]:
        """The variables of a function that lie in storages now."""
        return {name: blocks for (f, name), blocks in self._bound.items() if f == function}

    def holding(self, value: Any) -> Iterator[Block]:
        """The known storages that a value lies in."""
        for tensor in stored_tensors(value):
            block = self._blocks.get(storage_key(tensor))
            if block is not None:
                yield block

    def drop(self, block: Block) -> None:
        """Forget a storage that died."""
        self._blocks.pop(block.ref.key, None)

    def _unbind(self, key: Name) -> tuple[Block, ...]:
        blocks = self._bound.pop(key, ())
        self._variables.subtract(blocks)
        return blocks


def stored_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with a storage in a value: itself, or in its lists. Zeros that autograd made up have no memory."""
    strided = (t for t in tensors_in(value) if t.layout is torch.strided and t.device.type != "meta")
    return (t for t in strided if t.numel() == 0 or t.data_ptr())


_AT_PEAK = 20
_POINTS = 2000
_LIVES = 2000
_NOWHERE = SourceLine(file="", line=0, code="")


class Figures:
    """Counts the storages that one call allocates. What it was given counts for itself and not in the peak."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._plan = plan
        self.given = self.allocated = 0
        self.planned = self.actual = 0
        self.planned_peak = self.peak = 0
        self.saved = self.returned = 0
        self._born: dict[Block, int] = {}
        """When each storage was new, given up and gone, as positions in the timeline."""
        self._freed: dict[Block, int] = {}
        self._died: dict[Block, int] = {}
        self._at_peak: list[Block] = []
        self._timeline: list[tuple[int, int, int]] = []

    def born(self, block: Block) -> None:
        """A storage is new in this call."""
        if block.origin is Origin.GIVEN:
            self.given += block.nbytes
            return
        self._born[block] = len(self._timeline)
        self.allocated += block.nbytes
        self.planned += block.nbytes
        self.actual += block.nbytes
        self.planned_peak = max(self.planned_peak, self.planned)
        if self.actual > self.peak:
            self.peak = self.actual
            self._at_peak = []

    def released(self, block: Block) -> None:
        """The program gave up its last name for a storage."""
        if block in self._born and block not in self._freed:
            self._keep_peak()
            self.planned -= block.nbytes
            self._freed[block] = len(self._timeline)

    def died(self, block: Block) -> None:
        """A storage is gone."""
        if block in self._born and block not in self._died:
            self._keep_peak()
            self.actual -= block.nbytes
            self._died[block] = len(self._timeline)

    def step(self, line: int) -> None:
        """The statement at this line of the generated program has run."""
        if len(self._timeline) < _POINTS:
            self._timeline.append((line, self.planned, self.actual))

    def _keep_peak(self) -> None:
        if self.actual == self.peak and not self._at_peak:
            self._at_peak = [b for b in self._born if b not in self._died]

    def _source(self, block: Block) -> SourceLine:
        return self._plan.sources.get((block.function, block.name)) or _NOWHERE

    def event(self, graph: GraphRef, call: int) -> dict[str, Any]:
        """The body of the event that goes to the recording."""
        self._keep_peak()
        largest = sorted(self._at_peak, key=lambda b: -b.nbytes)
        by_line: dict[tuple[str, int, str], int] = defaultdict(int)
        for block in largest:
            source = self._source(block)
            by_line[source.file, source.line, source.module] += block.nbytes
        call_ = MemoryCall(
            graph=graph.id,
            direction=graph.direction,
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
            lives=tuple(
                BufferLife(
                    buffer=block.name,
                    bytes=block.nbytes,
                    born=born,
                    freed=self._freed.get(block),
                    died=self._died.get(block),
                    module=self._source(block).module,
                )
                for block, born in itertools.islice(self._born.items(), _LIVES)
            ),
        )
        body: dict[str, Any] = encode(call_)
        return body
