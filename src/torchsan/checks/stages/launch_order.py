"""Whether the launches of a compiled program read and write in the order of the graph they were made from.

Two things are compared. Where the graph writes to memory, each launch must see the version that its nodes see. And
memory that is handed on to another buffer must not be read under its old name any more, nor before it is written.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch.fx

from torchsan.checks.stages.effects import Effects, mutates
from torchsan.checks.stages.storages import Read, Reordered, Write
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.wrapper.model import Alias, Allocate, Branch, Function, Launch, Return
from torchsan.watch.observer import CompiledProgram

Position = tuple[int, int]
"""The number of a launch, and the place within it."""


def launch_order(program: CompiledProgram) -> tuple[Reordered, ...]:
    """The changes of places between the graphs of a program and the functions that were generated for them."""
    found: list[Reordered] = []
    for name, graph in program.graphs.items():
        function = program.model.functions.get(name)
        if function is None or any(isinstance(s, Branch) for s in function.steps):
            continue
        computing = _Computing(graph, function)
        found += _versions(graph, computing)
        found += _handed_on(function, computing)
    return tuple(found)


class _Computing:
    """When each buffer of a graph is computed, by which launch, and from which nodes."""

    def __init__(self, graph: LoweredGraph, function: Function) -> None:
        self.nodes: Mapping[str, torch.fx.Node] = {n.name: n for n in graph.module.graph.nodes}
        self.buffers = graph.buffers
        launches = function.launches()
        self.launches = {launch.nth: launch for launch in launches}
        writers: dict[str, list[Launch]] = defaultdict(list)
        for launch in launches:
            for name in launch.writes:
                writers[name].append(launch)
        self._of_group = _launches_of_groups(graph.buffers, writers)
        self._by_name = {b.name: b for b in graph.buffers}
        self.by_node: dict[str, list[tuple[Position, Buffer]]] = defaultdict(list)
        for i, buffer in enumerate(graph.buffers):
            computed = self._of_group.get(buffer.group)
            if computed is not None:
                for node in buffer.origins:
                    self.by_node[node].append(((computed.nth, i), buffer))

    def kernel(self, position: Position) -> str:
        """The kernel that is launched there."""
        return self.launches[position[0]].kernel

    def node_of(self, variable: str) -> torch.fx.Node | None:
        """The node whose value a variable holds, or one that it came from."""
        buffer = self._by_name.get(variable)
        if buffer is None:
            return self.nodes.get(variable)
        names = [buffer.node] if buffer.node is not None else list(buffer.origins)
        return next((self.nodes[n] for n in names if n in self.nodes), None)

    def reader(self, launch: Launch, variable: str) -> torch.fx.Node | None:
        """A node that the launch computes; one that reads the variable's node, if there is one."""
        wanted = self.node_of(variable)
        groups = {g for g, other in self._of_group.items() if other is launch}
        nodes = [self.nodes[n] for b in self.buffers if b.group in groups for n in b.origins]
        return next((n for n in nodes if wanted in n.all_input_nodes), nodes[-1] if nodes else None)


def _launches_of_groups(buffers: tuple[Buffer, ...], writers: Mapping[str, list[Launch]]) -> dict[int, Launch]:
    """The launch that computes each group: it writes its buffers; the n-th group to write some memory has the n-th."""
    found: dict[int, Launch] = {}
    used: dict[str, int] = defaultdict(int)
    for buffer in buffers:
        if buffer.removed:
            continue
        # What is written in place goes by the name of its memory, which several launches may write.
        in_place = buffer.storage != buffer.name
        choices = writers.get(buffer.storage, [])
        if not in_place and buffer.group not in found and choices:
            found[buffer.group] = choices[0]
    for buffer in buffers:
        if buffer.removed or buffer.storage == buffer.name:
            continue
        taken = found.get(buffer.group)
        choices = writers.get(buffer.storage, [])
        if taken is None and used[buffer.storage] < len(choices):
            found[buffer.group] = taken = choices[used[buffer.storage]]
        if taken in choices:
            used[buffer.storage] = choices.index(taken) + 1
    return found


def _versions(graph: LoweredGraph, computing: _Computing) -> Iterator[Reordered]:
    """The nodes that are computed before a write that comes first in the graph, or after one that comes later."""
    if not mutates(graph.module.graph):
        return
    effects = Effects(graph.module.graph)
    for name, reads in effects.reads.items():
        for read in reads:
            if read.storage is None or read.region is None or name not in computing.by_node:
                continue
            for write in _around(read, read.storage.writes):
                broken = _broken(computing, name, write, first=write.nth <= read.time)
                if broken is not None:
                    reading, writing, buffer = broken
                    yield Reordered(
                        original=read.statement,
                        statement=read.statement,
                        write=write.statement,
                        storage=read.storage.name,
                        late=write.nth > read.time,
                        kernels=(computing.kernel(reading), computing.kernel(writing)),
                        buffer=buffer.name,
                    )


def _around(read: Read, writes: list[Write]) -> Iterator[Write]:
    """The last write before a read and the first one after it: who changes places with another does so with these."""
    region = read.region
    assert region is not None
    for side in (reversed(writes[: read.time]), iter(writes[read.time :])):
        found = (w for w in side if w.statement is not read.statement and w.region.overlaps(region))
        yield from itertools.islice(found, 1)


def _broken(computing: _Computing, node: str, write: Write, *, first: bool) -> tuple[Position, Position, Buffer] | None:
    """Where the node is computed on the wrong side of a write, which comes `first` in the graph or after the node."""
    writing = [(at, b.storage) for at, b in computing.by_node.get(write.statement.name, ()) if b.storage != b.name]
    if len(writing) != 1:
        return None
    ((written, storage),) = writing
    computed = computing.by_node[node]
    # Of several launches for a node, those that are given the memory are the ones that read it.
    reading = [(at, b) for at, b in computed if storage in computing.launches[at[0]].reads]
    for at, buffer in reading or computed:
        if at != written and (at < written) == first:
            return at, written, buffer
    return None


@dataclass(frozen=True, slots=True)
class _Content:
    variable: str | None
    launch: Launch | None


def _handed_on(function: Function, computing: _Computing) -> Iterator[Reordered]:
    """The variables that are read after their memory was handed on and written, or before anything was written."""
    memory: dict[str, str] = {}
    names: dict[str, str] = {}
    holds: dict[str, _Content] = {}
    later: dict[str, list[Launch]] = defaultdict(list)
    for launch in function.launches():
        for name in launch.writes:
            later[name].append(launch)
    for step in function.steps:
        match step:
            case Allocate(name=name, pool=None):
                memory[name], names[name], holds[name] = name, name, _Content(None, None)
            case Alias(name=name, source=source, item=int(item)):
                # Each of several results has memory of its own, which holds it from the start.
                whole = memory.get(source, source)
                memory[name], names[name] = f"{whole}[{item}]", name
                holds[memory[name]] = _Content(name, holds[whole].launch if whole in holds else None)
            case Alias(name=name, source=source, reused=reused):
                memory[name] = memory.get(source, source)
                names[name] = name if reused else names.get(source, source)
            case Launch():
                for name in step.reads:
                    yield from _misread(name, step, memory, names, holds, later, computing)
                for name in step.writes:
                    memory.setdefault(name, name)
                    holds[memory[name]] = _Content(names.setdefault(name, name), step)
            case Return(names=returned):
                for name in returned:
                    yield from _misread(name, None, memory, names, holds, later, computing)
            case _:
                pass


def _misread(
    name: str,
    launch: Launch | None,
    memory: Mapping[str, str],
    names: Mapping[str, str],
    holds: Mapping[str, _Content],
    later: Mapping[str, list[Launch]],
    computing: _Computing,
) -> Iterator[Reordered]:
    content = holds.get(memory.get(name, ""))
    if content is None or content.variable == names.get(name):
        return
    write = content.launch
    if content.variable is None:
        # Nothing was written yet. If nothing ever is, it is `torch.empty`, and nobody's order.
        write = next((w for w in later.get(name, ()) if launch is not None and w.nth > launch.nth), None)
    elif launch is not None and name in launch.writes:
        return  # It takes the memory over with what it held, and works in place.
    if write is None:
        return
    own = names.get(name, name)
    reading = computing.reader(launch, own) if launch is not None else computing.node_of(own)
    writing = computing.node_of(content.variable or name)
    if reading is None or writing is None:
        return
    yield Reordered(
        original=reading,
        statement=reading,
        write=writing,
        storage=name,
        late=content.variable is not None,
        kernels=(launch.kernel if launch is not None else "return", write.kernel),
        buffer=name,
    )
