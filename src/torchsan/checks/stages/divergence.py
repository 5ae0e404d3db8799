"""Where two runs of one computation part: the first value of one that is nowhere in the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from torchsan.reference.nudge import tensors_in
from torchsan.torch_internals.dispatch import QuietMode
from torchsan.torch_internals.operators import outside_modes

_WITHIN = (1e-9, 1e-13)
"""How much two numbers may differ by, relative to the size of the values; less where that tells nothing."""

Signature = tuple[float, float, float]
"""A tensor in three numbers that rounding in float64 hardly moves: how many, the sum of magnitudes, that of the sum."""


class Signatures(dict[torch.fx.Node, Signature]):
    """What each node of a graph computed."""

    def note(self, node: torch.fx.Node, value: Any) -> None:
        """Note the value of a node as it is computed, because it may be overwritten; only that of a tensor."""
        if node.op.startswith("call_") and isinstance(value, torch.Tensor) and value.numel():
            with outside_modes():  # These sums are no operators of the program's.
                self[node] = _signature(value)


def where_they_part(upper: Signatures, operators: SeenOperators, lower: Signatures) -> list[torch.fx.Node]:
    """The nodes below that stand for what first differs above: a node, or an operator of its backward; empty if none.

    `operators` are all that was called above.
    """
    for within in _WITHIN:
        found = first_divergence(upper, lower, within) or first_other_operator(operators.calls, lower, within)
        if found:
            return found
    return []


def first_divergence(upper: Signatures, lower: Signatures, within: float = 1e-9) -> list[torch.fx.Node]:
    """The nodes below that came from the first node above whose value is nowhere below; empty if there is none.

    With them those that they are computed from and that have no counterpart above: inside of a decomposition.
    """
    for node, signature in upper.items():
        if any(_alike(signature, other, within) for other in lower.values()):
            continue
        trace = node.meta.get("stack_trace")
        found = {n for n in lower if n.meta.get("stack_trace") == trace}
        waiting = list(found)
        while waiting:
            for parent in waiting.pop().all_input_nodes:
                own = lower.get(parent)
                if own is not None and parent not in found and not any(_alike(own, s, within) for s in upper.values()):
                    found.add(parent)
                    waiting.append(parent)
        return [n for n in lower if n in found]
    return []


class SeenOperators(QuietMode):
    """Runs everything as it is, and notes which operators are called, in order, each with one of its results."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate its modes
        self.calls: list[tuple[Any, Signature]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += [(func, _signature(t)) for t in tensors_in(result) if t.numel()]
        return result


def first_other_operator(
    calls: Sequence[tuple[Any, Signature]], lower: Signatures, within: float = 1e-9
) -> list[torch.fx.Node]:
    """The nodes below that stand for the first operator that gives what is nowhere below; empty if there is none.

    Of these nodes, those that give what no operator gives. What they read may be so already: a wrong decomposition has
    the right value on its way, and another one in the end.
    """
    others = {n for n, signature in lower.items() if not any(_alike(signature, s, within) for _, s in calls)}
    for func, signature in calls:
        if any(_alike(signature, other, within) for other in lower.values()):
            continue
        found = {n for n in others if _stands_for(n) == str(func)}
        while found:
            above = [p for n in found for p in n.all_input_nodes if p in others - found and _is_backward(p)]
            if not above:
                return [n for n in lower if n in found]
            found = _with_parts(above[0])
    return []


def _stands_for(node: torch.fx.Node) -> str:
    """The operator that a node was, or is a part of."""
    return str(node.meta.get("original_aten", ""))


def _is_backward(node: torch.fx.Node) -> bool:
    """Whether a node was made by the backward: parts of the forward, which it may read, are nowhere above."""
    return bool(node.meta.get("autograd_backward")) or node.meta.get("partitioner_tag") == "is_backward"


def _with_parts(node: torch.fx.Node) -> set[torch.fx.Node]:
    """A node, and the other parts of what it stands for that it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        for parent in waiting.pop().all_input_nodes:
            if parent not in found and _stands_for(parent) == _stands_for(node) and parent.op == "call_function":
                found.add(parent)
                waiting.append(parent)
    return found


def _signature(t: torch.Tensor) -> Signature:
    wide = t.detach().to(torch.complex128 if t.is_complex() else torch.float64)
    return float(wide.numel()), float(wide.abs().sum()), float(abs(wide.sum()))


def _alike(a: Signature, b: Signature, within: float) -> bool:
    return all(x == y or abs(x - y) <= within * max(abs(x), abs(y), a[1]) for x, y in zip(a, b, strict=True))
