"""What is known of a program's memory before it runs: decided once a compile."""

from __future__ import annotations

import ast
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch.fx

from torchsan.graphs.nodes import source_lines
from torchsan.records import KernelRecord, SourceLine
from torchsan.torch_internals import LoweredGraph
from torchsan.torch_internals.operators import is_users_kernel, is_view
from torchsan.torch_internals.wrapper.kernels import gives_a_view
from torchsan.torch_internals.wrapper.model import Alias, Allocate, Branch, Free, Function, Launch, Opaque, Return, Step
from torchsan.watch.observer import CompiledProgram


def is_whole(text: str, name: str, numel: int) -> bool:
    """Whether an argument is all of `name`, a variable of `numel` elements: itself, or reinterpreted with no gaps.

    A view whose sizes are not plain numbers is not known to be.
    """
    if text == name:
        return True
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    match call:
        case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[ast.Name(id=base), *rest]) if base == name:
            try:
                size, strides, offset = (ast.literal_eval(node) for node in rest)
            except ValueError:
                return False
        case _:
            return False
    span = 1 + sum((s - 1) * d for s, d in zip(size, strides, strict=True))
    return bool(offset == 0 and math.prod(size) == numel == span)


_EMPTY = ("empty", "new_empty")
_TAKES_MEMORY = frozenset({"set_", "resize_", "resize_storage_bytes_"})
_PYTORCHS = ("torch.ops.aten.", "torch.ops.prims.", "torch.ops.inductor", "torch.ops._quantized.", "torch.ops.mkldnn.")
_UNSEEN_WRITES = ("torch.ops._c10d_functional", "torch.ops.higher_order", "_c10d_functional")
"""Operators that write later, or through functions that they were given."""

_serials = itertools.count()

Name = tuple[str, str]
"""A function of the program, and a variable of it."""


@dataclass(slots=True)
class Learnt:
    """What the calls of a program showed so far."""

    overflows: bool = False
    """Whether it wrote out of bounds."""
    proven: set[tuple[int, str]] = field(default_factory=set)
    """Launches, and operands of theirs, that were seen not to read what they are the first to write."""
    sources: dict[str, str] = field(default_factory=dict)
    """The artifacts with the source of its kernels, by the kernel's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """`hashed`: the variables that each launch writes and whose next use is a read, by the launch's number.

    `pools` hold several buffers; `handed_over` are given to operators that take or resize their memory, `unguarded`
    to operators of the user's that write and so might; `on_purpose` are never written because the user asked for
    uninitialised memory; the contents of `unfollowed` may change in ways that the program does not show. `tainted`
    tells whether the user's graph has uninitialised memory at all.
    """

    serial: int
    """Tells this program from all others of the process."""
    hashed: Mapping[int, frozenset[Name]]
    pools: frozenset[Name]
    handed_over: frozenset[Name]
    unguarded: frozenset[Name]
    on_purpose: frozenset[Name]
    unfollowed: frozenset[Name]
    views: Mapping[Name, str]
    """Variables that share memory since operators gave views of them, each with the first of its kind."""
    tainted: bool
    sources: Mapping[Name, SourceLine]
    kernels: Mapping[int, KernelRecord]
    learnt: Learnt = field(default_factory=Learnt)


def plan(program: CompiledProgram) -> MemoryPlan:
    """Return what is known of the program before it runs."""
    functions = program.model.functions
    graphs = {name: program.graphs[name] for name in functions if name in program.graphs}
    empties = {name: _empty_nodes(graph) for name, graph in graphs.items()}

    def names(find: Callable[[Function], Iterable[str]]) -> frozenset[Name]:
        return frozenset((name, n) for name, function in functions.items() for n in find(function))

    return MemoryPlan(
        serial=next(_serials),
        hashed=_all_hashed(functions),
        pools=names(lambda f: [s.pool for s in f.walk() if isinstance(s, Allocate) and s.pool is not None]),
        handed_over=names(_handed_over),
        unguarded=names(_written_by_users),
        on_purpose=frozenset((n, b) for n, graph in graphs.items() for b in _left_empty(graph, empties[n])),
        unfollowed=names(_unfollowed),
        views={(name, n): first for name, function in functions.items() for n, first in _views(function).items()},
        tainted=any(empties.values()),
        sources={key: line for name, graph in graphs.items() for key, line in _sources(name, graph)},
        kernels={k.nth: k for k in program.record.kernels},
    )


def _all_hashed(functions: Mapping[str, Function]) -> dict[int, frozenset[Name]]:
    found = ((name, nth, names) for name, function in functions.items() for nth, names in _hashed(function))
    return {nth: frozenset((name, n) for n in names) for name, nth, names in found}


def _left_empty(graph: LoweredGraph, empties: set[str]) -> list[str]:
    """The buffers that nobody was to write. One that is given to a user's Triton kernel was to be written by it."""
    nodes = [n for n in graph.module.graph.nodes if n.name in empties and not _for_users_kernel(n)]
    empties = {n.name for n in nodes}
    return [b.name for b in graph.buffers if b.origins and set(b.origins) <= empties]


def _for_users_kernel(node: torch.fx.Node) -> bool:
    return any(is_users_kernel(u.target) or (is_view(u) and _for_users_kernel(u)) for u in node.users)


def _hashed(function: Function) -> Iterator[tuple[int, set[str]]]:
    """For each launch, the variables that it writes and that are read before they are written again.

    A whole that is written in parts has its value after the last of them.
    """
    read_next: dict[str, bool] = defaultdict(bool)
    complete: set[str] = set()
    for step in reversed(list(function.walk())):
        match step:
            case Return(names=names):
                read_next.update(dict.fromkeys(names, True))
            case Alias(name=name, source=source, reused=reused):
                # What takes the memory over may read what it held, as a kernel that works in place does.
                read_next[source] = read_next[name] if reused else read_next[source] or read_next[name]
            case Launch():
                parts = set(step.bases)
                yield step.nth, {n for n in step.writes if read_next[n] and not (n in parts and n in complete)}
                complete |= parts
                read_next.update({n: False for n in step.writes if n not in parts})
                read_next.update(dict.fromkeys(step.reads, True))
                complete -= set(step.reads)
            case _:
                pass


def _handed_over(function: Function) -> Iterator[str]:
    for launch in function.launches():
        if not _TAKES_MEMORY.isdisjoint(launch.kernel.split(".")[-2:]):
            yield from launch.operands


def _written_by_users(function: Function) -> Iterator[str]:
    for launch in function.launches():
        if launch.kernel.startswith("torch.ops.") and not launch.kernel.startswith(_PYTORCHS):
            yield from (a.base for a in launch.arguments if a.written and a.base is not None)


def _unfollowed(function: Function) -> Iterator[str]:
    for step in function.walk():
        match step:
            case Opaque(names=names):
                yield from names
            case Launch(kernel=kernel) if kernel.startswith(_UNSEEN_WRITES):
                yield from (*step.operands, *step.writes)
            case _:
                pass
    for branch in function.steps:
        if isinstance(branch, Branch):
            yield from _in_branch(branch.steps)


def _views(function: Function) -> dict[str, str]:
    first: dict[str, str] = {}
    for step in function.walk():
        match step:
            case Launch(result=str(result)) if step.reads and gives_a_view(step.kernel):
                first[result] = first.setdefault(step.reads[0], step.reads[0])
            case Alias(name=name, source=source) if source in first:
                first[name] = first[source]
            case _:
                pass
    return first


def _in_branch(steps: tuple[Step, ...]) -> Iterator[str]:
    """What a block touches that may run any number of times."""
    for step in steps:
        match step:
            case Branch(steps=inner):
                yield from _in_branch(inner)
            case Launch():
                yield from (*step.operands, *step.writes)
            case Allocate(name=name) | Alias(name=name):
                yield name
            case Free(names=names):
                yield from names
            case _:
                pass


def _empty_nodes(graph: LoweredGraph) -> set[str]:
    return {
        n.name
        for n in graph.module.graph.nodes
        if n.op == "call_function" and str(getattr(n.target, "_opname", "")).startswith(_EMPTY)
    }


def _sources(function: str, graph: LoweredGraph) -> Iterator[tuple[Name, SourceLine]]:
    """The line of the user's program that each buffer and each saved or given value comes from."""
    nodes = {n.name: n for n in graph.module.graph.nodes}
    for buffer in graph.buffers:
        names = [buffer.node] if buffer.node is not None else list(buffer.origins)
        lines = source_lines(nodes[n] for n in names if n in nodes)
        if lines:
            yield (function, buffer.name), lines[-1]
