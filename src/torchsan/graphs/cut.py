"""From a part of an FX graph, or one call of an operator, to an exhibit: names and plain values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from torchsan.records import Given, OperatorCall

Keep = Callable[[str, torch.Tensor], str | None]
"""Stores a tensor; returns the name it got, or None if it is too large."""


class Unrepresentable(Exception):
    """Something that is no plain value, or no operator with a name; the message says what."""


def plain(value: Any, node: Callable[[Any], Any], number: Callable[[Any], Any] = lambda s: s) -> Any:
    """An argument as plain values; `node` stands in for nodes and tensors, `number` gives symbolic numbers."""
    if isinstance(value, torch.fx.Node | torch.Tensor):
        return node(value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        found = number(value)
        if found is None or isinstance(found, torch.SymInt | torch.SymFloat | torch.SymBool):
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


def operator_call(name: str, target: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> OperatorCall:
    """A call with plain arguments; raise Unrepresentable for what is no operator."""
    if target is operator.getitem:
        op = "getitem"
    elif hasattr(target, "_schema") and hasattr(target, "namespace"):
        op = str(target)
    else:
        raise Unrepresentable(f"{getattr(target, '__name__', target)} is no operator")
    return OperatorCall(name=name, op=op, args=tuple(args), kwargs=dict(kwargs))


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
            args = plain(node.args, self._reference, self._number)
            kwargs = {k: plain(v, self._reference, self._number) for k, v in node.kwargs.items()}
            self._names.add(node)
            target: Any = node.target
            if getattr(target, "namespace", "") == "torchsan":  # `probe` and `realize`: PyTorch alone has a copy.
                target, args, kwargs = torch.ops.aten.clone.default, args[:1], {}
            self.nodes.append(operator_call(node.name, target, args, kwargs))

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
        if isinstance(believed, torch.SymInt | torch.SymFloat | torch.SymBool):
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
