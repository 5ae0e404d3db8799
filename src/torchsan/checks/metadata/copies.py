"""Arguments in memory of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["private_copy"]


def private_copy(arguments: Any) -> Any:
    """The same arguments, each tensor among them with its elements, strides and offset in a storage of its own."""
    return pytree.tree_map_only(torch.Tensor, _copy, arguments)


def _copy(t: torch.Tensor) -> torch.Tensor:
    if t.layout is not torch.strided:
        return t.detach().clone().requires_grad_(t.requires_grad)
    length = t.untyped_storage().nbytes() // t.element_size()
    base = torch.empty_strided((length,), (1,), dtype=t.dtype, device=t.device)
    twin = base.as_strided(t.shape, t.stride(), t.storage_offset())
    if torch._debug_has_internal_overlap(t):  # Elements that share memory cannot be written each by itself.
        base.copy_(t.detach().as_strided((length,), (1,), 0))
    else:
        twin.copy_(t.detach())
    return twin.detach().requires_grad_(t.requires_grad)
