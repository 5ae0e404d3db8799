"""From a torch.fx graph, a part of one, or one call of an operator, to data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from torchsan.graphs.data import FUNCTIONS, Graph, Keep, NodeKind, Unrepresentable, without_probe
from torchsan.records import Given, OperatorCall
from torchsan.torch_internals.operators import is_users_kernel

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_FUNCTION_NAMES = {function: name for name, function in FUNCTIONS.items()}


def plain(value: Any, node: Callable[[Any], Any], number: Callable[[Any], Any] = lambda s: s) -> Any:
    """An argument as plain values; `node` stands in for nodes and tensors, `number` gives symbolic numbers."""
    if isinstance(value, torch.fx.Node | torch.Tensor):
        return node(value)
    if isinstance(value, _SYMBOLS):
        found = number(value)
        if found is None or isinstance(found, _SYMBOLS):
            raise Unrepresentable(f"a size that depends on data: {value}")
        return plain(found, node, number)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [plain(value.real, node), plain(value.imag, node)]}
    if isinstance(value, list | tuple):
        return [plain(v, node, number) for v in value]
    for kind in (torch.dtype, torch.device, torch.layout, torch.memory_format):
        if isinstance(value, kind):
            return {kind.__name__: str(value).removeprefix("torch.")}
    raise Unrepresentable(f"an argument that is a {type(value).__name__}")


def encode_call(
    name: str,
    target: Any,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    node: Callable[[Any], Any],
    number: Callable[[Any], Any],
) -> OperatorCall:
    """A call as data, its arguments as `plain` has them. Raise Unrepresentable for what is no operator."""
    if is_users_kernel(target):
        raise Unrepresentable("it runs a Triton kernel of your own, whose code no recording keeps")
    plain_args = tuple(plain(a, node, number) for a in args)
    plain_kwargs = {k: plain(v, node, number) for k, v in kwargs.items()}
    if target in _FUNCTION_NAMES:
        op = _FUNCTION_NAMES[target]
    elif hasattr(target, "_schema") and hasattr(target, "namespace"):
        op = str(target)
    else:
        raise Unrepresentable(f"{getattr(target, '__name__', target)} is no operator")
    return OperatorCall(name=name, op=op, args=plain_args, kwargs=plain_kwargs)


def given_tensor(name: str, t: torch.Tensor, keep: Keep) -> Given:
    """An input with its values, if they are not too many. Raise Unrepresentable for what is not plain memory."""
    if t.layout is not torch.strided or t.is_quantized or t.device.type != "cpu" or t.is_conj() or t.is_neg():
        raise Unrepresentable(f"{name} is a {t.layout} tensor on {t.device}")
    return Given(
        name=name,
        dtype=str(t.dtype).removeprefix("torch."),
        size=tuple(t.shape),
        stride=t.stride(),
        requires_grad=t.requires_grad,
        stored=keep(name, t),
    )


def describe_graph(graph: torch.fx.Graph) -> Graph:
    """Return the graph as data; raise Unrepresentable for what cannot be."""
    nodes = list(graph.nodes)
    returned = [n.args[0] for n in nodes if n.op == "output"]
    results = returned[-1] if returned else ()
    results = results if isinstance(results, tuple | list) else (results,)
    values = {n.name: n.meta.get("val") for n in nodes}
    return Graph(
        inputs=tuple(n.name for n in nodes if n.op == "placeholder"),
        attributes={n.name: str(n.target) for n in nodes if n.op == "get_attr"},
        calls=tuple(
            encode_call(n.name, n.target, n.args, n.kwargs, _name, lambda _symbol: None)
            for n in nodes
            if n.op == "call_function"
        ),
        outputs=tuple(r.name if isinstance(r, torch.fx.Node) else None for r in results),
        kinds={name: _kind(value) for name, value in values.items() if isinstance(value, torch.Tensor)},
        traces={n.name: n.meta["stack_trace"] for n in nodes if n.meta.get("stack_trace")},
    )


def _name(node: Any) -> dict[str, str]:
    if not isinstance(node, torch.fx.Node):
        raise Unrepresentable("a tensor among the arguments")
    return {"node": node.name}


def _kind(value: torch.Tensor) -> NodeKind:
    known = all(isinstance(n, int) for n in value.shape)
    return NodeKind(dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape) if known else None)


class GraphCut:
    """Collects a part of one graph: the nodes that are added, and as inputs whatever else they need.

    `values` are the tensors and numbers that are known; `number` gives a symbolic number, `attribute` a constant. A
    node whose value nobody knows becomes an input of its shape.
    """

    def __init__(
        self,
        keep: Keep,
        values: Mapping[torch.fx.Node, Any],
        number: Callable[[Any], Any],
        attribute: Callable[[str], Any],
        named: Mapping[torch.fx.Node, str] | None = None,
    ) -> None:
        """`named` are inputs that the caller has, by the name that they have there."""
        self._keep = keep
        self._named = named or {}
        self._values = values
        self._number = number
        self._attribute = attribute
        self._names: set[torch.fx.Node] = set()
        self.inputs: list[Given] = []
        self.nodes: list[OperatorCall] = []

    def add(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Add nodes, which stand in the order of the graph."""
        for node in nodes:
            if node.op != "call_function" or isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat):
                continue  # Constants and sizes come in where they are used.
            call = encode_call(node.name, node.target, node.args, node.kwargs, self._reference, self._number)
            self._names.add(node)
            self.nodes.append(without_probe(call))

    def reference(self, node: torch.fx.Node) -> str:
        """The name of a node's value, which becomes an input if it is not computed here."""
        found = self._reference(node)
        return str(found["node"])

    def _reference(self, node: torch.fx.Node) -> Any:
        if node in self._named:
            return {"node": self._named[node]}
        if node in self._names:
            return {"node": node.name}
        believed = node.meta.get("val")
        if isinstance(believed, _SYMBOLS):
            return plain(believed, lambda n: n, self._number)
        value = self._values.get(node)
        if value is None and node.op == "get_attr":
            value = self._attribute(str(node.target))
        if isinstance(value, bool | int | float):
            return value
        self._names.add(node)
        self.inputs.append(self._given(node, value, believed))
        return {"node": node.name}

    def _given(self, node: torch.fx.Node, value: Any, believed: Any) -> Given:
        if isinstance(value, torch.Tensor):
            return given_tensor(node.name, value, self._keep)
        if not isinstance(believed, torch.Tensor):
            raise Unrepresentable(f"{node.name} is not one tensor")
        return Given(
            name=node.name,
            dtype=str(believed.dtype).removeprefix("torch."),
            size=tuple(plain(n, lambda n: n, self._number) for n in believed.shape),
            stride=tuple(plain(n, lambda n: n, self._number) for n in believed.stride()),
        )
