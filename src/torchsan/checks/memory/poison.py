"""Poison: what memory holds that nobody has written, and where it still does.

The pattern is the largest integer of its width, so that one pass for the maximum tells whether it is anywhere: a NaN
with all its bits set in floating point, and no bool at all. Integers may be that large; two patterns tell them apart.
"""

from __future__ import annotations

import torch

__all__ = ["bits", "block_bits", "lay", "leave_other", "telling", "unwritten"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ORDINARY = {
    torch.bool: 0,
    torch.float64: 0xBFF8000000000000 - (1 << 64),
    torch.float32: 0xBFC00000 - (1 << 32),
    torch.float16: 0xBE00 - (1 << 16),
    torch.bfloat16: 0xBFC0 - (1 << 16),
}


def _component(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _integer(dtype: torch.dtype) -> torch.dtype:
    return _INTEGERS[_component(dtype).itemsize]


def telling(dtype: torch.dtype) -> bool:
    """Whether no program computes the pattern by itself: floating point of two bytes and more, and bool."""
    return dtype is torch.bool or (_component(dtype).is_floating_point and _component(dtype).itemsize > 1)


def block_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, gaps included, as integers of the width of its elements."""
    storage = tensor.untyped_storage()
    integer = _integer(tensor.dtype)
    return torch.empty(0, dtype=integer).set_(storage, 0, (storage.nbytes() // integer.itemsize,), (1,))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor as integers; complex numbers as two."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_integer(tensor.dtype))


def lay(tensor: torch.Tensor) -> None:
    """Fill the storage of a fresh tensor with the pattern."""
    whole = block_bits(tensor)
    whole.fill_(torch.iinfo(whole.dtype).max)


def leave_other(whole: torch.Tensor, where: torch.Tensor, dtype: torch.dtype) -> int:
    """Put another pattern, an ordinary number, at these positions of a storage's bits, and return it.

    Ordinary, because two NaNs come out of most arithmetic as the same one; negative, because many functions leave
    positive numbers as they are (−1.5); False for bool, because the pattern reads as True; and 1 for integers, which is
    harmless as an index and as a divisor.
    """
    value = _ORDINARY.get(_component(dtype), 1)
    whole[where] = value
    return value


def unwritten(tensor: torch.Tensor) -> torch.Tensor | None:
    """The positions, in its storage's bits, of the elements that hold the pattern; None if there are none."""
    if tensor.numel() == 0:
        return None
    values = bits(tensor)
    pattern = torch.iinfo(values.dtype).max
    if int(values.max()) != pattern:
        return None
    found = (values == pattern).nonzero()
    if found.numel() == 0 and values.dim():
        return None
    strides = torch.tensor(values.stride(), dtype=torch.int64)
    return (found * strides).sum(dim=1).add_(values.storage_offset())
