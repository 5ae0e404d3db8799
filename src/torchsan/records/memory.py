"""What the memory check counts in one call of a compiled graph."""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.records.program import Direction, GraphId

__all__ = ["BufferLife", "BytesByLine", "MemoryCall", "NamedBytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBytes:
    """A buffer and its size."""

    buffer: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesByLine:
    """How much of the peak a line of the user's program is the reason for; without a file, nobody knows the line."""

    file: str
    line: int
    module: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLife:
    """When a buffer lived, as positions in the timeline: from `born` up to, not including, `freed` and `died`.

    `freed` is when the program gave it up, `died` when its memory was gone; None if that was not in this call.
    """

    buffer: str
    bytes: int
    born: int
    freed: int | None = None
    died: int | None = None
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCall:
    """Bytes of one call. `timeline` is, after each step, the line of the wrapper, planned and actual bytes."""

    graph: GraphId
    direction: Direction
    call: int
    given: int
    allocated: int
    planned_peak: int
    peak: int
    saved: int
    returned: int
    at_peak: tuple[NamedBytes, ...] = ()
    by_source: tuple[BytesByLine, ...] = ()
    timeline: tuple[tuple[int, ...], ...] = ()
    lives: tuple[BufferLife, ...] = ()
