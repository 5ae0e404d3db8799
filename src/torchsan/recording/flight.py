"""What a program was doing when it died: a page of memory that its process shares with the one that supervises it.

A process that is killed by a signal says nothing more, but what it wrote to shared memory stays. Importing it imports
no torch.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torchsan.files import high_descriptors
from torchsan.records import Direction, GraphId, GraphRef, InFlight

_SIZE = 4096
_SLOT = struct.Struct("<5q")
"""What is done, and of which graph, direction, launch and call."""
_FIRST = 64
"""Where the slots begin; the first byte says whether the program was started."""
_SLOTS = (_SIZE - _FIRST) // _SLOT.size
NOTHING, RUNNING, CHECKING = range(3)
"""What a thread does with a launch."""
_WHOLE = -1
"""In the place of a launch: all of the graph."""
_DIRECTIONS = tuple(Direction)


def shared_page() -> int | None:
    """Return the descriptor of a new page for a child process; None where there is none to be had."""
    if os.name != "posix":
        return None
    try:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("torchsan")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.write(descriptor, bytes(_SIZE))  # A page without room on the disk would kill who writes to it.
    except OSError:
        return None
    return descriptor


class Flight:
    """The page in the process of the program. Each thread has a slot of its own, as long as there are some."""

    def __init__(self, descriptor: int) -> None:
        """Take the page over, and close its descriptor. Raise OSError if it is none."""
        try:
            with high_descriptors():
                self._page = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        # Its end would close a descriptor that may be the program's own by then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._page))
        self._numbers = itertools.count()
        self._threads = threading.local()
        self._pid = os.getpid()

    def started(self) -> None:
        """The program is about to start."""
        self._page[0] = 1

    @contextmanager
    def checking(self, graph: GraphRef, call: int) -> Iterator[None]:
        """While the context lasts, torchsan runs the whole of a graph by itself, to compare."""
        mark = self.of_call(graph, call)
        mark(CHECKING, _WHOLE)
        try:
            yield
        finally:
            mark(NOTHING, 0)

    def of_call(self, graph: GraphRef, call: int) -> Callable[[int, int], None]:
        """Return what to tell, in a call of a graph, what this thread does from now on, and with which launch."""
        direction = _DIRECTIONS.index(graph.direction)
        return lambda doing, nth: self._write(doing, graph.id, direction, nth, call)

    def _write(self, *values: int) -> None:
        slot: int | None = getattr(self._threads, "slot", None)
        if slot is None:
            slot = self._threads.slot = next(self._numbers)
        if slot < _SLOTS and os.getpid() == self._pid:  # A forked child shares the page, and is not watched.
            _SLOT.pack_into(self._page, _FIRST + slot * _SLOT.size, *values)


def was_started(descriptor: int) -> bool:
    """Whether the program that had this page was started."""
    return os.pread(descriptor, 1, 0) == b"\x01"


def in_flight(descriptor: int) -> Iterator[InFlight]:
    """Yield what the threads of the program that had this page did last, if that was to run or to check a launch."""
    page = os.pread(descriptor, _SIZE, 0)
    for at in range(_FIRST, len(page) - _SLOT.size + 1, _SLOT.size):
        doing, graph, direction, nth, call = _SLOT.unpack_from(page, at)
        with suppress(IndexError):  # The program may write where it should not: that is why it died, perhaps.
            if doing in (RUNNING, CHECKING) and min(graph, direction, call) >= 0 and nth >= _WHOLE:
                yield InFlight(
                    graph=GraphId(graph),
                    direction=_DIRECTIONS[direction],
                    nth=None if nth == _WHOLE else nth,
                    call=call,
                    checking=doing == CHECKING,
                )
