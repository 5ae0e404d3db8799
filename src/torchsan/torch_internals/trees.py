"""The leaves of nested lists, tuples, dictionaries and registered classes. Importing this module imports torch."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

__all__ = ["flatten"]


def flatten(tree: Any) -> list[Any]:
    """The leaves, in order."""
    return list(_pytree.tree_leaves(tree))
