"""Which FX nodes, operators and lines of the user's source a launch computes."""

from __future__ import annotations

import linecache
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from types import FrameType
from typing import TYPE_CHECKING

from torchsan.graphs.nodes import NOT_THE_USERS
from torchsan.records import KernelKind, SourceLine
from torchsan.torch_internals.wrapper.model import Alias, Function, Launch

if TYPE_CHECKING:
    from torchsan.torch_internals import Buffer

_HIDDEN = (*NOT_THE_USERS, "<")


def caller() -> tuple[SourceLine, ...]:
    """The innermost line outside torch and torchsan on this thread's stack; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HIDDEN) and "/torchinductor_" not in file:
            code = linecache.getline(file, frame.f_lineno).strip()
            return (SourceLine(file=file, line=frame.f_lineno, code=code),)
        frame = frame.f_back
    return ()


def buffers_of_launches(buffers: Iterable[Buffer], function: Function) -> dict[int, tuple[Buffer, ...]]:
    """Return, for each launch by its number, the buffers it computes, also those that never leave the kernel.

    Launches follow the order of Inductor's schedule, one launch a run of it; so each buffer belongs to the first
    launch, from the one before it on, that writes its storage, under whatever name. A buffer that was removed has no
    name in the program: it lives inside the kernel of its neighbour. What a subgraph computes belongs to no launch.
    Memory that only a Triton kernel of the user's own fills (`torch.empty`) is no step of the schedule.
    """
    launches = function.launches()
    known = _Names(function)
    writers = _Writers(launches)
    result: dict[int, list[Buffer]] = {launch.nth: [] for launch in launches}
    position = 0
    overwritten: set[tuple[int, str]] = set()
    removed: list[Buffer] = []
    for buffer in buffers:
        unpacked = known.is_unpacked(buffer.storage)
        # Results may be unpacked long after the launch that gave them.
        start = 0 if unpacked else position
        found = writers.first(known.of(buffer.storage), start, extern=buffer.extern)
        while found is not None and buffer.extern and (found, buffer.storage) in overwritten:
            # A Triton kernel of the user's own overwrites a storage once; this is the next one that does.
            found = writers.first(known.of(buffer.storage), found + 1, extern=True)
        if found is not None and unpacked:
            result[launches[found].nth].append(buffer)
        elif found is not None and launches[found].users_own:
            result[launches[found].nth].append(buffer)
            if buffer.extern:
                overwritten.add((found, buffer.storage))
                position = found
        elif found is not None:
            position = found
            result[launches[position].nth] += [*removed, buffer]
            removed = []
        elif buffer.removed:
            removed.append(buffer)
    if removed and launches:
        result[launches[position].nth] += removed
    return {nth: tuple(found) for nth, found in result.items()}


class _Writers:
    """The launches that write each variable."""

    def __init__(self, launches: tuple[Launch, ...]) -> None:
        self._launches = launches
        self._of: dict[str, list[int]] = defaultdict(list)
        for i, launch in enumerate(launches):
            for name in dict.fromkeys(launch.writes):
                self._of[name].append(i)

    def first(self, names: Iterable[tuple[int, str]], start: int, *, extern: bool) -> int | None:
        """The first launch from `start` on that writes one of the variables, if need be of the wrong kind.

        Each variable comes with the line that made it; no launch before that writes it.
        """
        found, other = len(self._launches), len(self._launches)
        for line, name in names:
            if found < len(self._launches) and line > self._launches[found].line:
                break
            writers = self._of.get(name, [])
            for i in writers[bisect_left(writers, start) :]:
                # An operator does not run inside a fused kernel; a Triton kernel of the user's own is an operator to
                # Inductor.
                if self._is_generated(i) != extern:
                    found = min(found, i)
                    break
                other = min(other, i)
        first = found if found < len(self._launches) else other
        return first if first < len(self._launches) else None

    def _is_generated(self, i: int) -> bool:
        return self._launches[i].kind is KernelKind.FUSED and not self._launches[i].users_own


def settled_nodes(function: Function, computes: Mapping[int, tuple[Buffer, ...]]) -> dict[int, dict[str, str]]:
    """Return, for each launch by its number, the variables that hold a node's value after it, and which.

    A buffer that is written in several steps holds its node's value after the last; one of several results is named
    `buf0[1]`.
    """
    launches = function.launches()
    buffers = {b.name: b for launch in launches for b in computes.get(launch.nth, ())}
    items = _items(function)
    last: dict[str, int] = {}
    for launch in launches:
        last |= {b.storage: launch.nth for b in computes.get(launch.nth, ())}
        last |= {name: launch.nth for name in launch.writes if name in buffers}
    settled: dict[int, dict[str, str]] = {}
    for storage, nth in last.items():
        buffer = buffers.get(storage)
        node = buffer.node if buffer is not None else None
        # What is removed stays inside the kernel, even where its name is an argument: the memory that it took over.
        if buffer is not None and node is not None and not buffer.removed:
            settled.setdefault(nth, {})[items.get(storage, storage)] = node
    return settled


def _items(function: Function) -> dict[str, str]:
    """How each variable that is one of several results of a launch is called in terms of those: `buf0[1]`."""
    results = {launch.result for launch in function.launches()}
    aliases = [s for s in function.walk() if isinstance(s, Alias) and not s.reused and s.source in results]
    return {s.name: f"{s.source}[{s.item}]" if s.item is not None else s.source for s in aliases}


class _Names:
    """The names under which a launch may write a storage: found once, since a program has as many as it has steps."""

    def __init__(self, function: Function) -> None:
        self._handed: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        """Where each variable is handed on, and to what, in the order of the program."""
        self._unpacked: dict[str, set[str]] = defaultdict(set)
        """What each variable is unpacked from."""
        for place, alias in enumerate(s for s in function.walk() if isinstance(s, Alias)):
            self._handed[alias.source].append((place, alias.line, alias.name))
            if not alias.reused:
                self._unpacked[alias.name].add(alias.source)

    def is_unpacked(self, storage: str) -> bool:
        """Whether it is one of several results of a launch."""
        return storage in self._unpacked

    def of(self, storage: str) -> Iterator[tuple[int, str]]:
        """Its own name, what it is unpacked from or else those it is handed on to, with the lines that made them."""
        yield 0, storage
        if storage in self._unpacked:
            yield from ((0, name) for name in self._unpacked[storage])
            return
        # Memory that is used again and again has as many names as the program has steps: the first ones mostly do.
        names, steps = {storage}, list(self._handed.get(storage, ()))
        heapify(steps)
        while steps:
            place, line, name = heappop(steps)
            if name not in names:
                names.add(name)
                yield line, name
                for step in self._handed.get(name, ()):
                    if step[0] > place:
                        heappush(steps, step)
