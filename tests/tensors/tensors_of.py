"""Tensors of every dtype and layout, and a reader of their elements that shares nothing with torchsan's."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
from hypothesis import strategies as st

INTEGERS = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, *FLOAT8]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
NUMERIC = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX]
LAYOUTS = ["plain", "scalar", "empty", "transposed", "stepped", "expanded", "overlapping", "offset", "conj", "neg"]


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype] = NUMERIC) -> torch.Tensor:
    """Draw a tensor of any bits in any layout. Often the elements are few, so that zeros and twins occur."""
    dtype = draw(st.sampled_from(dtypes))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    size = rows * columns * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if draw(st.booleans()):
        few = [raw[i : i + dtype.itemsize] for i in (0, size - dtype.itemsize)] + [bytes(dtype.itemsize)]
        raw = b"".join(draw(st.lists(st.sampled_from(few), min_size=rows * columns, max_size=rows * columns)))
    return laid_out(from_bytes(raw, dtype).view(rows, columns), draw(st.sampled_from(LAYOUTS)))


def from_bytes(raw: bytes, dtype: torch.dtype) -> torch.Tensor:
    """Return a 1-D tensor with these bytes."""
    if dtype is torch.bool:
        raw = bytes(b & 1 for b in raw)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype)


def laid_out(t: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a view of the 2-D tensor `t` in `layout`; as it is where the dtype has none such."""
    match layout:
        case "scalar":
            return t[0, 0]
        case "empty":
            return t[:, :0]
        case "transposed":
            return t.t()
        case "stepped":
            return t[::2, ::3]
        case "expanded":
            return t[:, None, :].expand(t.shape[0], 3, t.shape[1])
        case "overlapping":
            return t.as_strided((t.shape[0], t.shape[1]), (1, 1))
        case "offset":
            return t[-1, 1:]
        case "conj" if t.dtype.is_complex and t.dtype is not torch.complex32:
            return t.conj()
        case "neg" if t.dtype.is_complex and t.dtype is not torch.complex32:
            return t.conj().imag
    return t


def element_bytes(t: torch.Tensor) -> list[bytes]:
    """Return the bytes of each element in row-major order, by torch's own copy."""
    size = t.element_size()
    if t.numel() == 0:
        return []
    if t.dtype is torch.complex32:
        t = t.view(torch.int32)  # torch warns when it copies a complex32
    # Not `contiguous`, which keeps odd strides of dimensions of size 1.
    fresh = torch.empty(t.numel(), dtype=t.dtype).copy_(t.resolve_conj().resolve_neg().reshape(-1))
    whole = bytes(fresh.view(torch.uint8).tolist())
    return [whole[i : i + size] for i in range(0, len(whole), size)]


def element_values(t: torch.Tensor) -> list[Any]:
    """Return the elements as Python values, exactly."""
    return [decode(raw, t.dtype) for raw in element_bytes(t)]


def decode(raw: bytes, dtype: torch.dtype) -> Any:
    """Return the value of one element from the definition of its format."""
    if dtype is torch.bool:
        return raw != b"\0"
    if dtype.is_complex:
        half = len(raw) // 2
        part = {2: torch.float16, 4: torch.float32, 8: torch.float64}[half]
        return complex(decode(raw[:half], part), decode(raw[half:], part))
    if not dtype.is_floating_point:
        return int.from_bytes(raw, "little", signed=dtype.is_signed)
    if dtype in FLOAT8:
        return decode_float8(raw[0], dtype)
    if dtype is torch.bfloat16:
        return struct.unpack("<f", b"\0\0" + raw)[0]
    return struct.unpack({2: "<e", 4: "<f", 8: "<d"}[len(raw)], raw)[0]


def decode_float8(code: int, dtype: torch.dtype) -> float:
    """Return the value of a float8 as the OCP and the fnuz proposals define it."""
    if dtype is torch.float8_e8m0fnu:
        return math.nan if code == 255 else 2.0 ** (code - 127)
    name = str(dtype)
    mantissa = 3 if "e4m3" in name else 2
    bias = (7 if "e4m3" in name else 15) + ("fnuz" in name)
    sign, rest = (-1.0 if code >= 128 else 1.0), code % 128
    value: float
    exponent, fraction = divmod(rest, 2**mantissa)
    if "fnuz" in name:
        if code == 128:
            return math.nan
    elif "e4m3" in name:
        if rest == 127:
            return math.nan
    elif exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        value = fraction * 2.0 ** (1 - bias - mantissa)
    else:
        value = (1 + fraction / 2**mantissa) * 2.0 ** (exponent - bias)
    return sign * value


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, NaN included; parts of complex numbers one by one."""
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return bool(a == b) or (a != a and b != b)
