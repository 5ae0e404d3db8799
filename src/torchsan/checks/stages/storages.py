"""Memory as a graph sees it, without any numbers: which value each part of a storage holds after each write.

A value is an input, what a node computed, or an earlier value of which a part was overwritten. Two reads of two graphs
can be compared by the values they see, whatever the graphs call them and however they are laid out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_MOST_WRITES = 64
"""How many writes to one storage a read is followed through, so that a graph of n writes costs no n² steps."""
_DEPTH = 12
"""How deep two values are compared where no name is the same."""


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes that a tensor occupies in its storage: runs of `run` bytes, repeated by `dims` of (stride, size).

    `start` is None where sizes are not known: two such regions may overlap.
    """

    start: int | None
    end: int
    run: int
    dims: tuple[Any, ...] = ()

    def overlaps(self, other: Region) -> bool:
        """Whether a byte may be in both."""
        if self.start is None or other.start is None:
            return True
        if self.end <= other.start or other.end <= self.start:
            return False
        period = math.gcd(*(stride for stride, _ in (*self.dims, *other.dims)))
        if not self.dims or not other.dims or not period:
            return True
        # Columns of one matrix: the same stride, and runs that never meet.
        apart = (other.start - self.start) % period
        return not (apart >= self.run and period - apart >= other.run)

    def covers(self, other: Region) -> bool:
        """Whether every byte of the other is in this one, as far as that is known."""
        if self == other:
            return True
        if self.start is None or other.start is None or self.dims:
            return False
        return self.start <= other.start and other.end <= self.end


def region_of(size: Sequence[Any], stride: Sequence[Any], offset: Any, itemsize: int) -> Region:
    """The region of a tensor of this geometry; dimensions in one run count as one, however they are shaped."""
    numbers = (*size, *stride, offset)
    if not all(type(n) is int for n in numbers):
        return Region(None, 0, itemsize, (*map(str, numbers),))
    if 0 in size:
        return Region(0, 0, 0)
    run = itemsize
    dims: list[tuple[int, int]] = []
    for step, n in sorted((s * itemsize, n) for s, n in zip(stride, size, strict=True) if n != 1 and s != 0):
        if step == run and not dims:
            run *= n
        else:
            dims.append((step, n))
    start = offset * itemsize
    return Region(start, start + run + sum(s * (n - 1) for s, n in dims), run, tuple(dims))


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What is in memory. `what` is `input`, `part`, `view` or an operator; `name` that of the node, if it has one."""

    what: str
    name: str | None = None
    args: tuple[Any, ...] = ()
    detail: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One write of a statement to a region. `nth` counts those of its storage from 1."""

    statement: Any
    region: Region
    value: Value
    nth: int


@dataclass(slots=True, eq=False, kw_only=True)
class Storage:
    """Some memory: what it held at first, and what was written to it since, oldest first."""

    name: str
    base: Value
    made: Any = None
    """The statement that it is new memory of."""
    whole: Place | None = None
    """The place that `base` is the value of; None if that is all that is ever looked at."""
    named: dict[Region, Value] = field(default_factory=dict)
    """The first values of inputs that share this storage."""
    writes: list[Write] = field(default_factory=list)

    def write(self, statement: Any, region: Region, value: Value) -> Write:
        """Note a write, and return it."""
        write = Write(statement, region, value, len(self.writes) + 1)
        self.writes.append(write)
        return write

    def history(self, region: Region, time: int | None = None) -> Iterator[tuple[Value, Write | None]]:
        """The values that the region had, oldest first, each with the write that made it, up to the `time`-th write.

        Of many writes, only the last few are told apart.
        """
        value = self.named.get(region)
        if value is None:
            is_whole = self.whole is None or self.whole.region == region
            value = self.base if is_whole else Value("view", None, (self.base,), region)
        yield value, None
        for write in self.writes[:time][-_MOST_WRITES:]:
            if write.region.overlaps(region):
                value = _after(write, region, value)
                yield value, write


def _after(write: Write, region: Region, before: Value) -> Value:
    if write.region == region:
        return write.value
    if write.region.covers(region):
        return Value("view", None, (write.value,), region)
    return overwritten(before, write.region, write.value)


def overwritten(before: Value, region: Region, value: Value, name: str | None = None) -> Value:
    """A value of which a part is replaced by another: by what it held already, it is the same."""
    same = value.what == "view" and value.detail == region and value.args[0] is before
    if same:
        return before
    return Value("part", name, (before, value), region)


class Read:
    """A statement reads a place in a storage, after the first `time` writes to it.

    What it sees is worked out when somebody asks: most reads are of memory that is never written. `storage` is None for
    what lies in no memory of its own.
    """

    __slots__ = ("_place", "_value", "statement", "storage", "time")

    def __init__(self, statement: Any, place: Place | Value) -> None:
        self.statement = statement
        self._place = place
        self._value = place if isinstance(place, Value) else None
        self.storage = None if isinstance(place, Value) else place.storage
        self.time = 0 if self.storage is None else len(self.storage.writes)

    @property
    def value(self) -> Value:
        """What it sees."""
        if self._value is None:
            *_, (self._value, _) = self._until(self.time)
        return self._value

    @property
    def region(self) -> Region | None:
        """Where in the storage it reads."""
        return None if isinstance(self._place, Value) else self._place.region

    @property
    def written(self) -> bool:
        """Whether the storage is ever written, so that it matters when it is read."""
        return self.storage is not None and bool(self.storage.writes)

    def versions(self) -> list[tuple[Value, Write | None]]:
        """Every value that the place has in this program, also after the read; oldest first."""
        return self._until(None)

    def _until(self, time: int | None) -> list[tuple[Value, Write | None]]:
        if isinstance(self._place, Value):
            return [(self._place, None)]
        return list(self._place.storage.history(self._place.region, time))


class Place:
    """Where a tensor lies. The region is worked out when somebody asks."""

    __slots__ = ("_find", "storage")

    def __init__(self, storage: Storage, find: Region | Callable[[], Region]) -> None:
        self.storage = storage
        self._find = find

    @property
    def region(self) -> Region:
        """The bytes of the storage that it occupies."""
        if not isinstance(self._find, Region):
            self._find = self._find()
        return self._find


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reordered:
    """A read that sees another version of the same memory than it did: a write changed places with it, or is lost.

    `late`: it sees what `write` left, and did not before. `statement` reads in the changed graph, `original` in the one
    before (or made the copy that was read there); `storage` says in words which memory.
    """

    original: Any
    statement: Any
    write: Any
    storage: str
    late: bool
    kernels: tuple[str, str] | None = None
    """Of launches: the kernel that reads and the one that writes."""
    buffer: str | None = None


class Comparison:
    """Compares what reads of two graphs see. Each pair of values is compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Reordered | bool | None] = {}

    def reads(self, before: Read, after: Read, depth: int = 0) -> Reordered | bool | None:
        """True if both see the same, the change of places if they see two versions of one memory, None if unknown."""
        found = self.values(before.value, after.value, depth)
        if found is not None:
            return found
        if after.written:
            # The graph before saw a value that this memory has too, but at another time.
            for other, between in _others(after):
                if self.values(before.value, other, depth) is True:
                    return _changed(before, after, after.storage, between, late=True)
        if before.written:
            for other, between in _others(before):
                if self.values(other, after.value, depth) is True:
                    return _changed(before, after, before.storage, between, late=False)
        return None

    def values(self, before: Value, after: Value, depth: int = 0) -> Reordered | bool | None:
        """The same for two values."""
        if before is after or (before.name is not None and before.name == after.name):
            return True
        if before.what != after.what or before.detail != after.detail or len(before.args) != len(after.args):
            return None
        if before.what == "input":
            return None
        if depth > _DEPTH:
            return None
        key = (id(before), id(after))
        if key not in self._known:
            self._known[key] = None
            self._known[key] = self._arguments(before, after, depth + 1)
        return self._known[key]

    def _arguments(self, before: Value, after: Value, depth: int) -> Reordered | bool | None:
        result: Reordered | bool | None = True
        for a, b in zip(before.args, after.args, strict=True):
            if isinstance(a, Read) and isinstance(b, Read):
                found = self.reads(a, b, depth)
            elif isinstance(a, Value) and isinstance(b, Value):
                found = self.values(a, b, depth)
            else:
                found = True if type(a) is type(b) and a == b else None
            if isinstance(found, Reordered):
                return found
            result = result and found
        return result


def _others(read: Read) -> Iterator[tuple[Value, Write | None]]:
    """The values that the region has at other times, and the write between each and the read, nearest in time."""
    versions = read.versions()
    assert read.storage is not None
    now = max((i for i, (_, w) in enumerate(versions) if w is None or w.nth <= read.time), default=0)
    for i in itertools.chain(range(now - 1, -1, -1), range(now + 1, len(versions))):
        yield versions[i][0], versions[i + 1][1] if i < now else versions[i][1]


def _changed(
    before: Read, after: Read, storage: Storage | None, write: Write | None, *, late: bool
) -> Reordered | None:
    if write is None or storage is None:
        return None
    seen = write.nth <= (after if late else before).time
    made = before.storage.made if before.storage is not None and not before.written else None
    return Reordered(
        original=made if made is not None else before.statement,
        statement=after.statement,
        write=write.statement,
        storage=storage.name,
        late=seen if late else not seen,
    )


def geometry(tensor: torch.Tensor) -> Region:
    """The region of a tensor, real or fake."""
    return region_of(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.element_size())
