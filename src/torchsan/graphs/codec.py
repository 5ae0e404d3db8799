"""A whole FX graph as data and back: operators by name, arguments as plain values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchsan.errors import RecordingError
from torchsan.graphs.cut import Unrepresentable, operator_call, plain
from torchsan.graphs.operators import find_operator
from torchsan.records import OperatorCall
from torchsan.repro.values import argument
from torchsan.torch_internals.operators import load_inductor_operators

_NUMBERS: dict[str, Callable[..., Any]] = {
    f"operator.{f.__name__}": f for f in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """What a node gives: the dtype of a tensor and its shape, which is None if it depends on the inputs."""

    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """`inputs` and `attributes` are nodes, the latter with the constant that they name; `source` is for people."""

    inputs: tuple[str, ...]
    attributes: dict[str, str]
    calls: tuple[OperatorCall, ...]
    outputs: tuple[str | None, ...]
    kinds: dict[str, NodeKind]
    traces: dict[str, str]


def describe_graph(graph: torch.fx.Graph) -> Graph:
    """Return the graph as data; raise Unrepresentable for what cannot be."""
    calls: list[OperatorCall] = []
    outputs: tuple[str | None, ...] = ()
    for node in graph.nodes:
        if node.op == "call_function":
            calls.append(_call(node))
        elif node.op == "output":
            results = node.args[0] if isinstance(node.args[0], tuple | list) else (node.args[0],)
            outputs = tuple(r.name if isinstance(r, torch.fx.Node) else None for r in results)
    values = {n.name: n.meta.get("val") for n in graph.nodes}
    return Graph(
        inputs=tuple(n.name for n in graph.nodes if n.op == "placeholder"),
        attributes={n.name: str(n.target) for n in graph.nodes if n.op == "get_attr"},
        calls=tuple(calls),
        outputs=outputs,
        kinds={name: _kind(value) for name, value in values.items() if isinstance(value, torch.Tensor)},
        traces={n.name: n.meta["stack_trace"] for n in graph.nodes if n.meta.get("stack_trace")},
    )


def _call(node: torch.fx.Node) -> OperatorCall:
    def reference(n: Any) -> dict[str, str]:
        if not isinstance(n, torch.fx.Node):
            raise Unrepresentable("a tensor among the arguments")
        return {"node": n.name}

    args = plain(node.args, reference, lambda _symbol: None)
    kwargs = {k: plain(v, reference, lambda _symbol: None) for k, v in node.kwargs.items()}
    name = f"operator.{getattr(node.target, '__name__', '')}"
    if name in _NUMBERS:
        return OperatorCall(name=node.name, op=name, args=tuple(args), kwargs=kwargs)
    return operator_call(node.name, node.target, args, kwargs)


def _kind(value: torch.Tensor) -> NodeKind:
    known = all(isinstance(n, int) for n in value.shape)
    return NodeKind(dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape) if known else None)


def rebuild_graph(graph: Graph, constants: Mapping[str, Any]) -> torch.fx.GraphModule:
    """Return a module with the same graph. Raise RecordingError for operators and constants that are not there."""
    load_inductor_operators()
    made = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    for name in graph.inputs:
        nodes[name] = made.create_node("placeholder", name, name=name)
    for name, target in graph.attributes.items():
        nodes[name] = made.create_node("get_attr", target, name=name)
    for call in graph.calls:
        try:
            arguments = argument(list(call.args), nodes)
            kwargs = {k: argument(v, nodes) for k, v in call.kwargs.items()}
        except KeyError as e:
            raise RecordingError(f"malformed graph: {call.name!r:.80} needs {e}", slug="malformed-record") from e
        made_node = made.create_node("call_function", _target(call.op), tuple(arguments), kwargs, name=call.name)
        nodes[call.name] = made_node
    made.output(tuple(nodes[o] if o is not None else None for o in graph.outputs))
    for name, node in nodes.items():
        _annotate(node, graph.kinds.get(name), graph.traces)
    missing = [target for target in graph.attributes.values() if target not in constants]
    if missing:
        raise RecordingError(f"no constant {', '.join(missing)[:200]} in the exported program", slug="malformed-record")
    return torch.fx.GraphModule({target: constants[target] for target in graph.attributes.values()}, made)


def _target(op: str) -> Any:
    if op == "getitem":
        return operator.getitem
    return _NUMBERS[op] if op in _NUMBERS else find_operator(op)


def _annotate(node: torch.fx.Node, kind: NodeKind | None, traces: Mapping[str, str]) -> None:
    if kind is not None:
        dtype = getattr(torch, kind.dtype, None)
        if isinstance(dtype, torch.dtype):
            node.meta["val"] = torch.empty(kind.shape or (0,), dtype=dtype, device="meta")
    if node.name in traces:
        node.meta["stack_trace"] = traces[node.name]
