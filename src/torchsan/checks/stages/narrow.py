"""Within AOTAutograd's first graph, which shares no node with Dynamo's: the nodes whose values part from it first."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

__all__ = ["Signatures", "first_apart"]


class Signatures:
    """What each node of a graph computed, in three numbers. Taken as it runs, because values may be overwritten."""

    def __init__(self) -> None:
        self.of: dict[torch.fx.Node, tuple[float, float, float]] = {}

    def __call__(self, node: torch.fx.Node, value: Any) -> None:
        """Note the value of a node; anything but a tensor is left out."""
        if node.op.startswith("call_") and isinstance(value, torch.Tensor) and value.numel():
            wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
            self.of[node] = (float(wide.numel()), float(wide.abs().sum()), float(abs(wide.sum())))


def first_apart(upper: Signatures, lower: Signatures) -> list[torch.fx.Node]:
    """The nodes below that came from the first node above whose value is nowhere below; empty if there is none."""
    for node, signature in upper.of.items():
        if not any(_alike(signature, other) for other in lower.of.values()):
            trace = node.meta.get("stack_trace")
            return [n for n in lower.of if n.meta.get("stack_trace") == trace]
    return []


def _alike(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(x == y or abs(x - y) <= 1e-9 * max(abs(x), abs(y), a[1]) for x, y in zip(a, b, strict=True))
