"""The elements of a tensor as bytes in row-major order, a bounded piece at a time.

CPU memory is read through its address, not through operators: that works alike for every dtype, and no dispatch mode,
autograd or grad mode of the user is involved.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torchsan.records.tensor import Scalar
from torchsan.tensors.describe import kind_of

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


_NUMPY = {
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What the bytes of a dtype mean. A complex dtype has two `parts` to an element, each a number of dtype `part`."""

    family: Literal["bool", "integer", "float", "complex"]
    part: torch.dtype
    parts: int = 1

    def numbers(self, piece: Bytes) -> Array:
        """Return the numbers in `piece`, exactly: integers as they are, bools as uint8 0 or 1, floats as float32 or
        float64. Parts of complex elements follow each other.
        """
        if self.family == "bool":
            return np.not_equal(piece, 0).view(np.uint8)
        if self.part in _NUMPY:
            return piece.view(_NUMPY[self.part])
        if self.part is torch.float16:
            return piece.view(np.float16).astype(np.float32)
        if self.part is torch.bfloat16:
            return (piece.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return float8_values(self.part)[piece]

    def ranks(self, piece: Bytes) -> npt.NDArray[np.int64]:
        """Return where each number of a float format stands in the order of representable numbers; both zeros are 0."""
        size = self.part.itemsize
        bits = piece.view(f"u{size}").astype(np.uint64)
        if self.part is torch.float8_e8m0fnu:
            return bits.view(np.int64)
        sign = np.uint64(1 << (8 * size - 1))
        magnitude = (bits & (sign - np.uint64(1))).view(np.int64)
        return np.where(bits & sign, -magnitude, magnitude)

    def scalars(self, numbers: Array) -> tuple[Scalar, ...]:
        """Return what `numbers` made, as Python values, one an element."""
        plain = numbers.tolist()
        if self.family == "complex":
            return tuple(complex(re, im) for re, im in zip(plain[::2], plain[1::2], strict=True))
        return tuple(map(bool, plain)) if self.family == "bool" else tuple(plain)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number of a float or complex format."""
        return torch.finfo(self.part).smallest_normal


@functools.cache
def format_of(dtype: torch.dtype) -> Format | None:
    """Return how to read `dtype`, or None where its bytes are no numbers (bits, packed and sub-byte dtypes)."""
    if dtype is torch.bool:
        return Format(family="bool", part=dtype)
    if dtype in _PARTS:
        return Format(family="complex", part=_PARTS[dtype], parts=2)
    if dtype in (torch.float16, torch.bfloat16, *_FLOAT8):
        return Format(family="float", part=dtype)
    if dtype in _NUMPY:
        return Format(family="float" if dtype.is_floating_point else "integer", part=dtype)
    return None


@functools.cache
def float8_values(dtype: torch.dtype) -> npt.NDArray[np.float32]:
    """Return the value of each of the 256 bytes."""
    exponent, mantissa, bias, special = {
        torch.float8_e4m3fn: (4, 3, 7, "fn"),
        torch.float8_e4m3fnuz: (4, 3, 8, "fnuz"),
        torch.float8_e5m2: (5, 2, 15, "ieee"),
        torch.float8_e5m2fnuz: (5, 2, 16, "fnuz"),
        torch.float8_e8m0fnu: (8, 0, 127, "e8m0"),
    }[dtype]
    codes = np.arange(256)
    if special == "e8m0":
        values = np.ldexp(np.ones(256), codes - bias)
        values[255] = np.nan
        return np.asarray(values, np.float32)
    power, fraction = codes >> mantissa & (1 << exponent) - 1, codes & (1 << mantissa) - 1
    significand = np.where(power == 0, fraction, fraction + (1 << mantissa)).astype(np.float64)
    values = np.ldexp(significand, np.maximum(power, 1) - bias - mantissa)
    if special == "fn":
        values[0x7F::0x80] = np.nan
    elif special == "ieee":
        values[power == (1 << exponent) - 1] = np.nan
        values[0x7C::0x80] = np.inf
    values = np.copysign(values, np.where(codes & 0x80, -1.0, 1.0))
    if special == "fnuz":
        values[0x80] = np.nan
    return np.asarray(values, np.float32)
