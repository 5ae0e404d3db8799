"""Operators that do something: they keep their order, and nothing removes them."""

from __future__ import annotations

__all__ = ["keep_in_order"]


def keep_in_order(operator: str) -> None:
    """Tell the compiler that the operator, named `namespace::name`, has an effect, in the order of its calls."""
    import torch
    from torch._library.effects import EffectType

    torch.library._register_effectful_op(operator, EffectType.ORDERED)
