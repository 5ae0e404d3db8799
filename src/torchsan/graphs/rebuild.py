"""From a graph as data to something that runs: operators that the dispatcher knows, and what plain values stand for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from torchsan.errors import RecordingError, UsageError
from torchsan.graphs.data import FUNCTIONS, Graph, NodeKind, foreign_operators, validate_graph
from torchsan.records import Exhibit, OperatorCall
from torchsan.torch_internals.operators import load_inductor_operators, overloads_named, registered_names


@functools.cache
def find_operator(op: str) -> Callable[..., Any]:
    """The overload of a name such as `aten.amin.default`; raise RecordingError if no dispatcher knows it."""
    if op in FUNCTIONS:
        return FUNCTIONS[op]
    library, name, overload = op.split(".") if op.count(".") == 2 else ("", op, "")
    if library == "prims":
        load_inductor_operators()
    full = f"{library}::{name}" + ("" if overload == "default" else f".{overload}")
    # What TorchScript knows beyond the dispatcher (`aten::save` and the like) is not for reproducers.
    found = overloads_named([full]) if full in registered_names() else []
    if not found:
        raise RecordingError(f"this PyTorch has no operator {op:.200}", slug="malformed-record")
    return found[0]  # type: ignore[no-any-return]  # an operator is callable


def require_operators(exhibit: Exhibit) -> None:
    """Raise RecordingError for an operator of PyTorch's own that it does not have."""
    foreign = foreign_operators(exhibit)
    for node in exhibit.nodes:
        if node.op not in foreign:
            find_operator(node.op)


def dtype_named(name: str) -> torch.dtype:
    """The dtype of this name; raise UsageError if PyTorch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"this PyTorch has no dtype {name!r:.40}", slug="malformed-record")
    return found


def argument(value: Any, values: Mapping[str, Any]) -> Any:
    """What plain values stand for; `values` are the nodes and inputs by name."""
    match value:
        case list() | tuple():
            return [argument(v, values) for v in value]
        case {"complex": [real, imaginary]}:
            return complex(argument(real, values), argument(imaginary, values))
        case {"node": str(name)}:
            return values[name]
        case {"dtype": str(name)}:
            return dtype_named(name)
        case {"device": str(name)}:
            return torch.device(name)
        case {"layout": str()}:
            return torch.strided
        case {"memory_format": "contiguous_format" | "preserve_format" | "channels_last" | "channels_last_3d" as name}:
            return getattr(torch, name)
        case {"float": str(text)}:
            return float(text)
        case dict():
            raise RecordingError(f"malformed argument {value!r:.80}", slug="malformed-record")
        case _:
            return value


def add_call(
    graph: torch.fx.Graph, call: OperatorCall, nodes: Mapping[str, torch.fx.Node], target: Callable[..., Any]
) -> torch.fx.Node:
    """Add a node that calls `target` with the arguments of `call`; `nodes` are those before it, by name."""
    args = tuple(argument(list(call.args), nodes))
    kwargs = {k: argument(v, nodes) for k, v in call.kwargs.items()}
    return graph.create_node("call_function", target, args, kwargs, name=call.name)


def rebuild_graph(graph: Graph, constants: Mapping[str, Any]) -> torch.fx.GraphModule:
    """Return a module with the same graph. Raise RecordingError for operators and constants that are not there."""
    validate_graph(graph)
    made = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    for name in graph.inputs:
        nodes[name] = made.create_node("placeholder", name, name=name)
    for name, attribute in graph.attributes.items():
        nodes[name] = made.create_node("get_attr", attribute, name=name)
    for call in graph.calls:
        nodes[call.name] = add_call(made, call, nodes, find_operator(call.op))
    made.output(tuple(nodes[o] if o is not None else None for o in graph.outputs))
    for name, node in nodes.items():
        _annotate(node, graph.kinds.get(name), graph.traces.get(name))
    missing = [name for name in graph.attributes.values() if name not in constants]
    if missing:
        raise RecordingError(f"no constant {', '.join(missing)[:200]} in the exported program", slug="malformed-record")
    return torch.fx.GraphModule({name: constants[name] for name in graph.attributes.values()}, made)


def _annotate(node: torch.fx.Node, kind: NodeKind | None, trace: str | None) -> None:
    if kind is not None:
        shape = kind.shape if kind.shape is not None else (0,)
        node.meta["val"] = torch.empty(shape, dtype=dtype_named(kind.dtype), device="meta")
    if trace is not None:
        node.meta["stack_trace"] = trace
