"""Which arguments an operator writes, by its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["mutated_arguments"]

_PREFIXES = {
    "aten": "aten",
    "inductor_ops": "inductor",
    "_quantized": "_quantized",
    "prims": "prims",
}
"""How a wrapper abbreviates the namespaces of `torch.ops`."""


def mutated_arguments(operator: str) -> Callable[[int | str], bool]:
    """Return whether the operator, named as in a wrapper (`torch.ops.aten.index_put_.default`), writes an argument.

    Without an overload's name any overload that writes the argument counts. An unknown operator is taken to write
    nothing.
    """
    overloads = _overloads(operator)

    def mutated(argument: int | str) -> bool:
        return any(_writes(overload, argument) for overload in overloads)

    return mutated


def _overloads(operator: str) -> list[Any]:
    import torch

    parts = operator.removeprefix("torch.ops.").split(".")
    namespace = _PREFIXES.get(parts[0], parts[0])
    try:
        packet = getattr(getattr(torch.ops, namespace), parts[1])
        if len(parts) > 2:
            return [getattr(packet, parts[2])]
        return [getattr(packet, name) for name in packet.overloads()]
    except (AttributeError, IndexError):
        return []


def _writes(overload: Any, argument: int | str) -> bool:
    arguments = overload._schema.arguments
    if isinstance(argument, int):
        chosen = arguments[argument : argument + 1]
    else:
        chosen = [a for a in arguments if a.name == argument]
    return any(a.alias_info is not None and a.alias_info.is_write for a in chosen)
