"""How the elements of each dtype are read from their bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from torchsan.records.tensor import Scalar
from torchsan.tensors.elements import Array, Bytes

__all__ = ["Format", "format_of"]

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
        return _float8_values(self.part)[piece]

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
def _float8_values(dtype: torch.dtype) -> npt.NDArray[np.float32]:
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
