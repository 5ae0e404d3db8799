"""Which FX nodes, operators and lines of the user's source a launch computes."""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchsan.records import GraphNodes, GraphRef, KernelKind, NodeRecord, SourceLine
from torchsan.torch_internals.wrapper.model import Alias, Function, Launch

if TYPE_CHECKING:
    import torch.fx

    from torchsan.torch_internals import Buffer, LoweredGraph

# Where torch is found, not where packages are installed: an environment may borrow it from another one.
_TORCH = importlib.util.find_spec("torch")
_NOT_THE_USERS = (
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{folder}{os.sep}" for folder in (_TORCH.submodule_search_locations or () if _TORCH is not None else ())),
)


def caller() -> tuple[SourceLine, ...]:
    """The innermost line outside torch and torchsan on this thread's stack; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_NOT_THE_USERS, "<")) and "/torchinductor_" not in file:
            code = linecache.getline(file, frame.f_lineno).strip()
            return (SourceLine(file=file, line=frame.f_lineno, code=code),)
        frame = frame.f_back
    return ()


_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n(?:\s*(?P<code>[^\n]*))?')


def buffers_of_launches(buffers: Iterable[Buffer], function: Function) -> dict[int, tuple[Buffer, ...]]:
    """Return, for each launch by its number, the buffers it computes, also those that never leave the kernel.

    Launches follow the order of Inductor's schedule, one launch a run of it; so each buffer belongs to the first
    launch, from the one before it on, that writes its storage, under whatever name. A buffer that was removed has no
    name in the program: it lives inside the kernel of its neighbour. What a subgraph computes belongs to no launch.
    """
    launches = function.launches()
    result: dict[int, list[Buffer]] = {launch.nth: [] for launch in launches}
    position = 0
    removed: list[Buffer] = []
    for buffer in buffers:
        names, unpacked = _names_of(buffer.storage, function)
        # Results may be unpacked long after the launch that gave them.
        start = 0 if unpacked else position
        found = _first_writer(names, launches, start, extern=buffer.extern)
        if found is not None and unpacked:
            result[launches[found].nth].append(buffer)
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
    # An operator does not run inside a fused kernel; only a Triton kernel of the user's own counts as both.
    fitting = [i for i in writers if (launches[i].kind is KernelKind.FUSED) != extern]
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


def operator_name(node: torch.fx.Node) -> str | None:
    """The operator that a node calls, as `aten.relu.default`; None for inputs, constants and plain Python."""
    if node.op != "call_function":
        return None
    name = str(node.target)
    return name if getattr(node.target, "_schema", None) is not None or "higher_order" in repr(node.target) else None


def graph_nodes(ref: GraphRef, graphs: Iterable[LoweredGraph]) -> GraphNodes:
    """The nodes of a compiled graph and of its subgraphs, with the lines that they came from."""
    sources: dict[SourceLine, int] = {}
    nodes = []
    for graph in graphs:
        for node in graph.module.graph.nodes:
            line = next(iter(_source_line(node.meta)), None)
            nodes.append(
                NodeRecord(
                    name=node.name,
                    op=(operator_name(node) or str(node.target)) if node.op.startswith("call_") else node.op,
                    inputs=tuple(parent.name for parent in node.all_input_nodes),
                    type=_type_name(node.meta.get("val")),
                    source=sources.setdefault(line, len(sources)) if line is not None else None,
                    function=graph.function,
                )
            )
    return GraphNodes(graph=ref.id, direction=ref.direction, nodes=tuple(nodes), sources=tuple(sources))


def _type_name(value: Any) -> str:
    """`float32[4, 8]` of a tensor, with symbols for sizes that are not known; empty of anything else."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return ""
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def source_lines(nodes: Iterable[torch.fx.Node]) -> tuple[SourceLine, ...]:
    """The user's lines that the nodes came from, each once, in the order of the nodes."""
    return tuple(dict.fromkeys(line for node in nodes for line in _source_line(node.meta)))


def _source_line(meta: dict[str, Any]) -> Iterator[SourceLine]:
    """The innermost frame outside torch and torchsan, or, if the user's code is nowhere in the trace, the innermost."""
    frames = list(_FRAME.finditer(meta.get("stack_trace") or ""))
    outside = [f for f in frames if not f["file"].startswith(_NOT_THE_USERS)]
    if frames:
        frame = (outside or frames)[-1]
        yield SourceLine(
            file=frame["file"], line=int(frame["line"]), code=(frame["code"] or "").strip(), module=_module_path(meta)
        )
    else:
        yield from _forward_of_module(meta)


def _forward_of_module(meta: dict[str, Any]) -> Iterator[SourceLine]:
    """Where there is no trace (a module of torch's own that was compiled directly): the `forward` of that module."""
    _, class_ = _innermost_module(meta)
    code = getattr(getattr(class_, "forward", None), "__code__", None)
    if code is not None:
        yield SourceLine(
            file=code.co_filename,
            line=code.co_firstlineno,
            code=f"{class_.__name__}.forward",
            module=_module_path(meta),
        )


def _innermost_module(meta: dict[str, Any]) -> tuple[str, Any]:
    """The path and the class of the module that a node came from; empty and None if there is none."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {"": ("", None)}
    path, class_ = list(stack.values())[-1][:2]
    return str(path), class_


def _module_path(meta: dict[str, Any]) -> str:
    """Where in the model: `layers.0.attention`, from the way Dynamo reached the module (`L['self']._modules[…]`)."""
    path, _ = _innermost_module(meta)
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", re.sub(r"^L\['(?:self|fn|model|mod)'\]\.?", "", path))
    return path.removeprefix("L.").strip(".")
