"""The elements of a tensor as bytes in row-major order, a bounded piece at a time.

CPU memory is read through its address, not through operators: that works alike for every dtype, and no dispatch mode,
autograd or grad mode of the user is involved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torchsan.tensors.describe import kind_of

__all__ = ["PIECE", "Array", "Bytes", "elements", "memory", "unreadable"]

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
_Strided: TypeAlias = torch.Tensor | Array

PIECE = 1 << 18
"""Elements in a piece: 1 MB of float32, so that what follows the first pass over a piece reads it from cache."""

# Copies of strided pieces must keep bits, so elements travel as unsigned integers (16 bytes: as complex, which NumPy
# copies bit by bit too).
_CARRIER: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}


def unreadable(t: torch.Tensor) -> str | None:
    """Return why the elements of `t` cannot be read, or None if they can."""
    kind = kind_of(t)
    if kind in ("fake", "meta"):
        return f"a {kind} tensor has no elements"
    if kind != "dense":
        return f"the elements of {kind} tensors are not read"
    try:
        address, held = t.data_ptr(), t.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return f"{type(t).__name__} keeps its elements elsewhere"
    if t.numel() == 0:
        return None
    extent = t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    if extent * t.element_size() > held:
        return "its storage has been resized below what the tensor needs"
    return None if address else f"{type(t).__name__} keeps its elements elsewhere"


def elements(*tensors: torch.Tensor) -> Iterator[tuple[Bytes, ...]]:
    """Yield the bytes of `tensors`, which have one shape and are readable, in row-major order, piece by piece.

    Each piece is the same range of at most PIECE elements of every tensor. What is contiguous in CPU memory is not
    copied; the arrays are read-only there. Conjugate and negative views come out resolved.
    """
    views: list[_Strided] = [_Memory(t).array() if t.device.type == "cpu" else t.detach() for t in tensors]
    if all(t.is_contiguous() for t in tensors):
        views = [v.reshape(-1) for v in views]
    for pieces in _walk(views):
        yield tuple(_resolved(_flat(piece), t) for piece, t in zip(pieces, tensors, strict=True))


def memory(t: torch.Tensor) -> Bytes | None:
    """Return all bytes of `t`, which is readable, in the order of CPU memory; None if they are not side by side."""
    if t.device.type != "cpu" or t.is_conj() or t.is_neg():
        return None
    array = _Memory(t).array()
    # Transposed and channels-last tensors too: with the widest stride first they are contiguous.
    array = array.transpose(sorted(range(array.ndim), key=lambda d: -array.strides[d]))
    return array.reshape(-1).view(np.uint8) if array.flags.c_contiguous else None


class _Memory:
    """A CPU tensor's memory in NumPy's terms; the arrays made from it keep the tensor alive."""

    def __init__(self, t: torch.Tensor) -> None:
        self._tensor = t
        size = t.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (t.data_ptr(), True),
            "typestr": _CARRIER[size].str,
            "shape": tuple(t.shape),
            "strides": tuple(s * size for s in t.stride()),
        }

    def array(self) -> Array:
        # NumPy takes a null address, as empty tensors have, for an error.
        if 0 in self._tensor.shape:
            return np.empty(self._tensor.shape, _CARRIER[self._tensor.element_size()])
        return np.asarray(self)


def _walk(views: list[_Strided]) -> Iterator[list[_Strided]]:
    """Yield views of at most PIECE elements that follow each other in row-major order."""
    shape = tuple(views[0].shape)
    inner = math.prod(shape[1:])
    if math.prod(shape) == 0:
        return
    if math.prod(shape) <= PIECE:
        yield views
    elif inner <= PIECE:
        rows = PIECE // inner
        for start in range(0, shape[0], rows):
            yield [v[start : start + rows] for v in views]
    else:
        for i in range(shape[0]):
            yield from _walk([v[i] for v in views])


def _flat(piece: _Strided) -> Bytes:
    if isinstance(piece, torch.Tensor):
        # A device's tensor: the copy resolves lazy bits there, `_resolved` has nothing left to do.
        host = piece.resolve_conj().resolve_neg().contiguous().cpu()
        return _Memory(host).array().reshape(-1).view(np.uint8)
    return np.ascontiguousarray(piece.reshape(-1)).view(np.uint8)


def _resolved(piece: Bytes, t: torch.Tensor) -> Bytes:
    """Return `piece` of `t` with the lazy conjugation and negation of `t` carried out."""
    if t.device.type != "cpu" or not (t.is_conj() or t.is_neg()):
        return piece
    if not (t.dtype.is_floating_point or t.dtype.is_complex):
        carrier = _CARRIER[t.element_size()]
        negated: Array = np.negative(piece.view(carrier))
        return negated.view(np.uint8)
    parts = 2 if t.dtype.is_complex else 1
    bits = piece.view(_CARRIER[t.element_size() // parts]).reshape(-1, parts).copy()
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    if t.is_neg():
        bits ^= sign
    if t.is_conj():
        bits[:, 1] ^= sign
    return bits.reshape(-1).view(np.uint8)
