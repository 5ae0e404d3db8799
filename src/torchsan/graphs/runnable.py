"""The graph that a compile cache keeps beside its code, as a script: read as data, never executed.

PyTorch writes such a script for people who want to reproduce a compile: settings, a module with the graph, and what its
inputs look like. Importing it imports no torch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from torchsan.files import count_parts
from torchsan.graphs.data import KNOWN, Graph, Unrepresentable, validate_graph, validate_inputs
from torchsan.graphs.printed import parse_graph
from torchsan.records import Given

MARK = "def load_args(reader):"
"""Stands in every such script."""
_MOST_PARTS = 200_000
_SETTINGS = "torch._inductor.config."


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A graph, its inputs in order, and the settings of Inductor that were not its defaults."""

    graph: Graph
    inputs: tuple[Given, ...]
    settings: dict[str, Any]


def read_runnable(text: str) -> Runnable:
    """Return what a script describes. Raise Unrepresentable if it is none, or has more than plain values and operators.

    Raise RecordingError for a graph that no compiler has written.
    """
    if count_parts(text) > _MOST_PARTS:
        raise Unrepresentable("its graph is too large to be read")
    try:
        printed = parse_graph(text)
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Unrepresentable("its graph cannot be read") from e
    if printed.subgraphs or any(node.op == "get_attr" for node in printed.computed()):
        raise Unrepresentable("its graph has subgraphs, or tensors of its own")
    calls = tuple(node.call() for node in printed.computed())
    for call in calls:
        library = call.op.partition(".")[0]
        if call.op != "getitem" and library not in (*KNOWN, "operator"):
            raise Unrepresentable(f"it calls {call.op:.80}, which is not PyTorch's own")
    graph = Graph(inputs=printed.inputs, attributes={}, calls=calls, outputs=printed.outputs, kinds={}, traces={})
    validate_graph(graph)
    inputs = tuple(_inputs(body, printed.inputs))
    validate_inputs(inputs, set())
    return Runnable(graph=graph, inputs=inputs, settings=dict(filter(None, map(_setting, body))))


def _inputs(body: list[ast.stmt], names: tuple[str, ...]) -> list[Given]:
    loads = next((s for s in body if isinstance(s, ast.FunctionDef) and s.name == "load_args"), None)
    if loads is None:
        raise Unrepresentable("what its inputs look like is not known")
    found: list[Given] = []
    for statement in loads.body:
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Attribute(attr="storage"), keywords=keywords)):
                if any(k.arg == "device" for k in keywords):
                    raise Unrepresentable("it is for another device than the CPU")
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="tensor"), args=args, keywords=keywords)):
                name = names[len(found)] if len(found) < len(names) else ""
                found.append(_tensor(name, args[1:], {k.arg: k.value for k in keywords}))
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=kind))):
                raise Unrepresentable(f"one of its inputs is a {kind}, and no tensor of a known size")
            case _:
                raise Unrepresentable("what its inputs look like cannot be read")
    if len(found) != len(names):
        raise Unrepresentable("what its inputs look like is not known")
    return found


def _tensor(name: str, args: list[ast.expr], keywords: dict[str | None, ast.expr]) -> Given:
    try:
        size, *rest = (tuple(ast.literal_eval(a)) for a in args)
        offset = int(ast.literal_eval(keywords["storage_offset"])) if "storage_offset" in keywords else 0
    except (ValueError, TypeError) as e:
        raise Unrepresentable("an input has a size that is no number") from e
    if not all(isinstance(n, int) for n in (*size, *(rest[0] if rest else ()))):
        raise Unrepresentable("an input has a size that is no number")
    dtype = keywords.get("dtype")
    return Given(
        name=name,
        dtype=dtype.attr if isinstance(dtype, ast.Attribute) else "float32",
        size=size,
        stride=rest[0] if rest else _contiguous(size),
        offset=offset,
    )


def _contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _setting(statement: ast.stmt) -> tuple[str, Any] | None:
    match statement:
        case ast.Assign(targets=[ast.Attribute() as target], value=value):
            name = ast.unparse(target)
            if name.startswith(_SETTINGS):
                try:
                    return name.removeprefix(_SETTINGS), ast.literal_eval(value)
                except ValueError:
                    return name.removeprefix(_SETTINGS), ast.unparse(value)
    return None
