"""The leaves of nested lists, tuples, dictionaries and registered classes. Importing this module imports torch."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

__all__ = ["flatten", "unflatten_call"]


def flatten(tree: Any) -> list[Any]:
    """The leaves, in order."""
    return list(_pytree.tree_leaves(tree))


def unflatten_call(program: Any, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an exported program from their leaves, as it was exported with."""
    args, kwargs = _pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(args), dict(kwargs)
