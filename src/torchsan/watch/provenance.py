"""Which FX nodes, operators and lines of the user's source a launch computes."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Mapping
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
    result: dict[int, list[Buffer]] = {launch.nth: [] for launch in launches}
    position = 0
    overwritten: set[tuple[int, str]] = set()
    removed: list[Buffer] = []
    for buffer in buffers:
        names, unpacked = _names_of(buffer.storage, function)
        # Results may be unpacked long after the launch that gave them.
        start = 0 if unpacked else position
        found = _first_writer(names, launches, start, extern=buffer.extern)
        while found is not None and buffer.extern and (found, buffer.storage) in overwritten:
            # A Triton kernel of the user's own overwrites a storage once; this is the next one that does.
            found = _first_writer(names, launches, found + 1, extern=True)
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


def _first_writer(names: set[str], launches: tuple[Launch, ...], start: int, *, extern: bool) -> int | None:
    writers = [i for i in range(start, len(launches)) if names & set(launches[i].writes)]
    # An operator does not run inside a fused kernel; a Triton kernel of the user's own is an operator to Inductor.
    generated = [i for i in writers if launches[i].kind is KernelKind.FUSED and not launches[i].users_own]
    fitting = [i for i in writers if (i in generated) != extern]
    return next(iter(fitting or writers), None)


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


def _names_of(storage: str, function: Function) -> tuple[set[str], bool]:
    """The names under which a launch may write a storage: its own, those it is handed on to, what it is unpacked from.

    And whether it is unpacked from something.
    """
    aliases = [s for s in function.walk() if isinstance(s, Alias)]
    items = {alias.source for alias in aliases if not alias.reused and alias.name == storage}
    if items:
        return {storage, *items}, True
    names = {storage}
    for alias in aliases:
        if alias.source in names:
            names.add(alias.name)
    return names, False
