"""What a node of a torch.fx graph calls, what its value is and which line of the program it came from.

Importing it imports no torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan.records import GraphNodes, GraphRef, NodeRecord, SourceLine

if TYPE_CHECKING:
    import torch.fx

    from torchsan.torch_internals import LoweredGraph

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n(?:\s*(?P<code>[^\n]*))?')


def _torch_folder() -> Path:
    """Where PyTorch is, without importing it: not always beside torchsan, nor in this environment."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("torch")


NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (_torch_folder(), Path(__file__).parents[1]))
"""What the files of PyTorch and of torchsan begin with."""


def operator_name(node: torch.fx.Node) -> str | None:
    """The operator that a node calls, as `aten.relu.default`; None for inputs, constants and plain Python."""
    if node.op != "call_function":
        return None
    name = str(node.target)
    return name if getattr(node.target, "_schema", None) is not None or "higher_order" in repr(node.target) else None


def computed_by(node: torch.fx.Node) -> torch.fx.Node:
    """The node that calls the operator: the node itself, unless that takes one of several results."""
    takes = getattr(node.target, "__name__", None) == "getitem" and node.all_input_nodes
    return node.all_input_nodes[0] if takes else node


def in_words(node: torch.fx.Node) -> str:
    """A node as a sentence names it: `the sigmoid`, `result 1 of the convolution_backward`."""
    called = computed_by(node)
    return f"the {node.name}" if called is node else f"result {node.args[1]} of the {called.name}"


def names_of(nodes: Sequence[torch.fx.Node], *, decomposed: bool = False) -> dict[str, Any]:
    """The fields of a finding about these nodes: `nodes`, `ops` and `source`.

    One of several results has the operator that computes them all; with `decomposed`, and if it is one of Inductor's
    own, a node also has that which it was before. What no line of the program was noted for has those of the nearest
    nodes that it reads, or that read it.
    """
    ops = [op for n in nodes for op in _operators(n, decomposed=decomposed)]
    return {
        "nodes": tuple(n.name for n in nodes),
        "ops": tuple(dict.fromkeys(ops)),
        "source": source_lines(nodes) or _lines_near(nodes),
    }


def unnamed(names: Mapping[str, Any]) -> dict[str, str]:
    """The evidence `unnamed`: one line on why a finding lacks nodes, operators or a line; empty if it has them all."""
    if not names["nodes"]:
        return {"unnamed": "no nodes: there is no graph between the program and this result that could be compared"}
    if not names["ops"]:
        return {"unnamed": "no operators: the nodes call plain Python functions"}
    if not names["source"]:
        return {"unnamed": "no source: PyTorch noted no line of the program for these nodes"}
    return {}


def _operators(node: torch.fx.Node, *, decomposed: bool) -> Iterator[str]:
    target = node.target
    if (called := computed_by(node)) is not node:
        yield from _operators(called, decomposed=decomposed)
    elif (name := operator_name(node)) is not None:
        yield name
    elif node.op.startswith("call_") and not isinstance(target, str):
        module = str(getattr(target, "__module__", None) or "").removeprefix("_")
        # A function of Inductor's that stands for several operators is named by the last of them.
        stands_for = node.meta.get("original_aten") if module.startswith("torch._inductor") else None
        yield (
            str(stands_for) if stands_for is not None else f"{module}.{getattr(target, '__name__', target)}".lstrip(".")
        )
    elif node.op == "call_method":
        yield f"Tensor.{target}"
    # Nobody's program calls Inductor's own operators.
    inductors = str(target).startswith("prims.")
    if (decomposed or inductors) and node.meta.get("original_aten") is not None:
        yield str(node.meta["original_aten"])


def _lines_near(nodes: Sequence[torch.fx.Node]) -> tuple[SourceLine, ...]:
    for step in (lambda n: n.all_input_nodes, lambda n: list(n.users)):
        seen, waiting = set(nodes), list(nodes)
        while waiting:
            waiting = [other for n in waiting for other in step(n) if other not in seen]
            if lines := source_lines(waiting):
                return lines
            seen.update(waiting)
    return ()


def graph_nodes(ref: GraphRef, graphs: Iterable[LoweredGraph], called: Mapping[str, str]) -> GraphNodes:
    """The nodes of a compiled graph and of its subgraphs, with the lines that they came from.

    `called` are the user's names of its inputs.
    """
    sources: dict[SourceLine, int] = {}
    nodes = []
    for graph in graphs:
        for node in graph.module.graph.nodes:
            line = _source_line(node.meta)
            nodes.append(
                NodeRecord(
                    name=node.name,
                    op=(operator_name(node) or str(node.target)) if node.op.startswith("call_") else node.op,
                    inputs=tuple(parent.name for parent in node.all_input_nodes),
                    type=_type_name(node.meta.get("val")),
                    source=sources.setdefault(line, len(sources)) if line is not None else None,
                    function=graph.function,
                    called=called.get(node.name, "") if node.op == "placeholder" and graph.function == "call" else "",
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
    found = (_source_line(node.meta) for node in nodes)
    return tuple(dict.fromkeys(line for line in found if line is not None))


def _source_line(meta: dict[str, Any]) -> SourceLine | None:
    """The innermost frame outside torch and torchsan, or, if the user's code is nowhere in the trace, the innermost."""
    frames = list(_FRAME.finditer(meta.get("stack_trace") or ""))
    path, class_ = _module(meta)
    if frames:
        frame = ([f for f in frames if not f["file"].startswith(NOT_THE_USERS)] or frames)[-1]
        return SourceLine(file=frame["file"], line=int(frame["line"]), code=(frame["code"] or "").strip(), module=path)
    # No trace: a module of torch's own that was compiled directly. Its `forward` is the line.
    code = getattr(getattr(class_, "forward", None), "__code__", None)
    if code is None:
        return None
    return SourceLine(file=code.co_filename, line=code.co_firstlineno, code=f"{class_.__name__}.forward", module=path)


def _module(meta: dict[str, Any]) -> tuple[str, Any]:
    """The innermost module: where in the model it is, as `layers.0.attention`, and its class; None if there is none.

    Dynamo writes the way by which it reached the module: `L['self']._modules['layers']…`.
    """
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return "", None
    path, class_ = list(stack.values())[-1][:2]
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", str(path))
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", re.sub(r"^L\['(?:self|fn|model|mod)'\]\.?", "", path))
    return re.sub(r"^[LG]\.", "", path).strip("."), class_
