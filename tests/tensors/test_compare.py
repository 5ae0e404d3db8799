from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tensors.tensors_of import (
    COMPLEX,
    FLOAT8,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    NUMERIC,
    decode,
    element_bytes,
    element_values,
    from_bytes,
    laid_out,
    same,
    tensors,
)

from torchsan.errors import UsageError
from torchsan.tensors import compare, digest


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw two tensors of one shape and dtype, that share many elements."""
    dtype, rows, columns = draw(st.sampled_from(NUMERIC)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    size = rows * columns * dtype.itemsize
    one = draw(st.binary(min_size=size, max_size=size))
    two = bytearray(one)
    for at in draw(st.lists(st.integers(0, size - 1), max_size=4)):
        two[at] = draw(st.integers(0, 255))
    layout = draw(st.sampled_from(LAYOUTS))
    a, b = (laid_out(from_bytes(bytes(raw), dtype).view(rows, columns), layout) for raw in (one, two))
    if draw(st.booleans()) and b.numel():
        b = from_bytes(b"".join(element_bytes(b)), b.dtype).view(b.shape)
    return a, b


def rank(raw: bytes, dtype: torch.dtype) -> int:
    """Return the place of a float among all of its dtype: how many steps from zero."""
    code = int.from_bytes(raw, "little")
    if dtype is torch.float8_e8m0fnu:
        return code
    half = 1 << (8 * len(raw) - 1)
    return code if code < half else half - code


def ulps(a: bytes, b: bytes, dtype: torch.dtype) -> int:
    if dtype.is_complex:
        half = len(a) // 2
        part = {2: torch.float16, 4: torch.float32, 8: torch.float64}[half]
        return max(ulps(a[:half], b[:half], part), ulps(a[half:], b[half:], part))
    return abs(rank(a, dtype) - rank(b, dtype))


def distance(a: Any, b: Any) -> Any:
    if isinstance(a, complex):
        return float(np.hypot(a.real - b.real, a.imag - b.imag))
    return abs(int(a) - int(b)) if isinstance(a, int) else abs(a - b)


def relative(a: Any, b: Any) -> float:
    if a == b:
        return 0.0
    if b == 0:
        return math.inf
    parts = [(Fraction(a.real), Fraction(b.real)), (Fraction(a.imag), Fraction(b.imag))]
    top = max(max(abs(x), abs(y)) for x, y in parts)
    off = math.hypot(*(float((x - y) / top) for x, y in parts))
    size = Fraction(math.hypot(*(float(y / top) for _, y in parts))) or max(abs(y) for _, y in parts) / top
    try:
        return float(Fraction(off) / size)
    except OverflowError:
        return math.inf


@settings(deadline=None, max_examples=300)
@given(pairs())
def test_a_comparison_says_what_element_by_element_python_says(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    actual, expected = pair
    mine, other = element_values(actual), element_values(expected)
    bad = [i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if not same(a, b)]
    both = [i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if np.isfinite(a) and np.isfinite(b)]
    result = compare(actual, expected)
    assert result.reason is None
    assert (result.count, result.mismatches, bool(result)) == (len(mine), len(bad), not bad)
    if bad:
        index = tuple(int(i) for i in np.unravel_index(bad[0], tuple(actual.shape)))
        assert result.first_bad == index
        assert same(result.actual_at, mine[bad[0]]) and same(result.expected_at, other[bad[0]])
    else:
        assert (result.first_bad, result.actual_at, result.expected_at) == (None, None, None)
    if not both:
        assert (result.max_abs, result.max_rel, result.max_ulps) == (None, None, None)
        return
    assert result.max_abs == pytest.approx(max(distance(mine[i], other[i]) for i in both), rel=1e-15, abs=0)
    assert result.max_rel == pytest.approx(max(relative(mine[i], other[i]) for i in both), rel=1e-12, abs=1e-300)
    if actual.dtype in (*FLOATS, *COMPLEX):
        raw = list(zip(element_bytes(actual), element_bytes(expected), strict=True))
        assert result.max_ulps == max(ulps(*raw[i], actual.dtype) for i in both)
    else:
        assert result.max_ulps is None
        assert type(result.max_abs) is int


@settings(deadline=None, max_examples=100)
@given(tensors())
def test_a_tensor_equals_itself_with_its_nans(t: torch.Tensor) -> None:
    result = compare(t, t)
    assert result
    assert result.max_abs in (0, None)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_ends_of_every_integer_are_exactly_apart(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    result = compare(torch.tensor([0, low], dtype=dtype), torch.tensor([0, high], dtype=dtype))
    assert (result.max_abs, result.first_bad) == (high - low, (1,))
    assert (result.actual_at, result.expected_at) == (low, high)


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d not in FLOAT8], ids=str)
def test_the_next_number_is_one_ulp_away(dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    following = (one.view(bits) + 1).view(dtype)
    assert compare(following, one).max_ulps == 1
    assert compare(torch.zeros(1, dtype=dtype), -torch.zeros(1, dtype=dtype)).max_ulps == 0


def test_zeros_of_either_sign_are_equal() -> None:
    assert compare(torch.tensor([0.0, complex(0.0, -0.0)]), torch.tensor([complex(-0.0, 0.0), 0.0]))


def test_infinities_equal_those_of_their_sign_only() -> None:
    inf = math.inf
    result = compare(torch.tensor([inf, -inf, inf, 1.0]), torch.tensor([inf, -inf, -inf, inf]))
    assert (result.mismatches, result.first_bad, result.max_abs) == (2, (2,), None)


def test_a_difference_beyond_float64_is_still_a_relative_error() -> None:
    result = compare(torch.tensor([1.5e308], dtype=torch.float64), torch.tensor([-1e308], dtype=torch.float64))
    assert result.max_abs == math.inf
    assert result.max_rel == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        (torch.ones(2), torch.ones(3), "shape (2,), expected (3,)"),
        (torch.ones(2), torch.ones(2).double(), "dtype float32, expected float64"),
        (torch.empty(2, device="meta"), torch.ones(2), "actual: a meta tensor has no elements"),
        (torch.ones(2, 2), torch.eye(2).to_sparse(), "expected: the elements of sparse tensors are not read"),
        (
            torch.zeros(2, dtype=torch.bits8),
            torch.zeros(2, dtype=torch.bits8),
            "elements of bits8 are not read as numbers",
        ),
    ],
    ids=["shape", "dtype", "meta", "sparse", "bits"],
)
def test_what_cannot_be_compared_has_a_reason(actual: torch.Tensor, expected: torch.Tensor, reason: str) -> None:
    result = compare(actual, expected)
    assert not result
    assert result.reason == reason


def test_the_first_of_many_differences_is_named_in_a_strided_tensor() -> None:
    t = torch.zeros(700, 3, 500)
    u = t.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    u[400, 2, 499], u[400, 2, 498], u[699, 0, 0] = 1.0, 3.0, 2.0
    result = compare(t, u)
    assert (result.mismatches, result.first_bad, result.max_abs) == (3, (400, 2, 498), 3.0)


def test_decoding_agrees_with_torch() -> None:
    for dtype in FLOAT8:
        t = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
        wide = t.float().tolist()
        assert all(same(decode(bytes([i]), dtype), wide[i]) for i in range(256))


@settings(deadline=None, max_examples=200)
@given(tensors())
def test_a_copy_in_other_memory_has_the_same_digest(t: torch.Tensor) -> None:
    raw = b"".join(element_bytes(t)) or bytes(t.element_size())
    copy = from_bytes(raw, t.dtype)[: t.numel()].view(t.shape)
    assert digest(t) == digest(copy)


@settings(deadline=None, max_examples=200)
@given(tensors(), tensors())
def test_digests_are_equal_exactly_when_dtype_shape_and_bits_are(a: torch.Tensor, b: torch.Tensor) -> None:
    alike = a.dtype == b.dtype and a.shape == b.shape and element_bytes(a) == element_bytes(b)
    assert (digest(a) == digest(b)) is alike


def test_zeros_of_either_sign_differ() -> None:
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_nan_payloads_differ() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert digest(bits[:1]) != digest(bits[1:])


def test_shape_and_dtype_count() -> None:
    t = torch.zeros(6)
    assert len({digest(t), digest(t.view(2, 3)), digest(t.view(torch.int32)), digest(t.view(3, 2))}) == 4


def test_pieces_of_a_strided_tensor_join_without_a_seam() -> None:
    t = torch.arange(1_200_000, dtype=torch.int32).view(3, 400, 1000)
    for view in (t.permute(2, 1, 0), t.permute(1, 0, 2), t[:, ::3], t.transpose(0, 2)[::2]):
        assert digest(view) == digest(view.contiguous())


def test_dtypes_without_arithmetic_have_a_digest() -> None:
    raw = torch.arange(4, dtype=torch.uint8)
    for dtype in ("bits8", "float4_e2m1fn_x2", "int4", "uint3"):
        assert digest(raw.view(getattr(torch, dtype))) != digest(raw)


@pytest.mark.parametrize("t", [torch.empty(3, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"])
def test_a_tensor_without_readable_elements_has_no_digest(t: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="tensor-unreadable"):
        digest(t)
