"""What the symbolic sizes of a graph are in one call, by its inputs. Importing it imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx

__all__ = ["bind_symbols", "symbol_value"]


def bind_symbols(graph: torch.fx.Graph, inputs: Iterable[Any]) -> dict[Any, Any]:
    """The value of each symbol that is itself a size, a stride or a number among the inputs."""
    symbols: dict[Any, Any] = {}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=False):
        believed = node.meta.get("val")
        pairs: list[tuple[Any, Any]]
        if isinstance(believed, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = list(zip(believed.shape, value.shape, strict=False))
            pairs += zip(believed.stride(), value.stride(), strict=False)
            pairs.append((believed.storage_offset(), value.storage_offset()))
        else:
            pairs = [(believed, value)]
        for symbolic, actual in pairs:
            expression = getattr(getattr(symbolic, "node", None), "expr", None)
            # The ragged size of a jagged tensor stands for many numbers, and is none.
            known = isinstance(actual, int | float) and not math.isnan(actual)
            if known and expression is not None and getattr(expression, "is_Symbol", False):
                symbols.setdefault(expression, actual)
    return symbols


def symbol_value(value: Any, symbols: Mapping[Any, Any]) -> Any:
    """The value of a symbolic number, or None if it depends on something unknown, such as data."""
    if isinstance(value, int | float | bool):
        return value
    expression = value.node.expr
    result = expression.xreplace(dict(symbols)) if hasattr(expression, "xreplace") else expression
    if getattr(result, "free_symbols", None):
        return None
    if isinstance(value, torch.SymBool):
        return bool(result)
    return int(result) if isinstance(value, torch.SymInt) else float(result)
