"""Triton kernels as users write them, and programs that launch them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def add(a, b, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + tl.load(b + i, i < n), i < n)


@triton.jit
def increment(a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(a + i, tl.load(a + i, i < n) + 1, i < n)


@triton.jit
def increment_into(a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + 1, i < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) * 3, i < n)


@triton.jit
def beyond(a, out, n, BLOCK: tl.constexpr):
    """Stores eight elements too many."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + 1, i < n + 8)


@triton.jit
def neighbours(a, out, n, BLOCK: tl.constexpr):
    """Loads the element after the last."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + tl.load(a + i + 1, i < n), i < n)


@triton.jit
def scaled_sum(a, b, out, factor, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x, y = tl.load(a + i, i < n), tl.load(b + i, i < n)
    tl.store(out + i, (x + y) * factor.to(x.dtype), i < n)


@triton.jit
def larger(a, b, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.maximum(tl.load(a + i), tl.load(b + i)))


@triton.jit
def softmax(a, out, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(a + row * n + i, i < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out + row * n + i, (e / tl.sum(e, 0)).to(out.dtype.element_ty), i < n)


@triton.jit
def centre(a, out, stride, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(a + row * stride + i, i < n, other=0.0)
    tl.store(out + row * n + i, x - tl.sum(x, 0) / n, i < n)


@triton.jit
def product(a, b, out, M, N, K, BLOCK: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        x = tl.load(a + m[:, None] * K + k[None, :], (m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], (k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(out + m[:, None] * N + n[None, :], total.to(out.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def count(a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, i < n)
    tl.atomic_add(out + (x > 0).to(tl.int32), x * 0 + 1.0, i < n)


@triton.jit
def perturb(a, out, seed, scale, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, i < n)
    tl.store(out + i, x + (tl.rand(seed, i) * scale).to(x.dtype), i < n)


@triton.jit
def looking_at_bits(a, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, i < n).to(tl.int32, bitcast=True)
    tl.store(out + i, (x & 0x7FFFFFFF).to(tl.float32, bitcast=True), i < n)


def _grid(t: Tensor) -> tuple[int]:
    return (triton.cdiv(t.numel(), 64),)


def into_empty(x: Tensor) -> Tensor:
    y = x * 2
    out = torch.empty_like(x)
    add[_grid(x)](y, x, out, x.numel(), BLOCK=64)
    return out.sin()


def into_zeros(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    add[_grid(x)](x, x, out, x.numel(), BLOCK=64)
    return out.sin() + out.softmax(-1)


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    increment[_grid(y)](y, y.numel(), BLOCK=64)
    return y.sin()


def into_an_input(x: Tensor) -> Tensor:
    increment[_grid(x)](x, x.numel(), BLOCK=64)
    return x.sin()


def twice_in_place(x: Tensor) -> Tensor:
    y = x * 2
    z = y.exp()
    increment[_grid(y)](y, y.numel(), BLOCK=64)
    z = z + y.sin()
    increment[_grid(y)](y, y.numel(), BLOCK=64)
    return y.cos() + z.sum()


def softmax_of_rows(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    softmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=64)
    return out.cos()


def centred_columns(x: Tensor) -> Tensor:
    """Of a matrix with gaps: the kernel is given how far apart its rows are."""
    part = x[:, :40]
    out = torch.empty(part.shape, dtype=x.dtype)
    centre[(x.shape[0],)](part, out, part.stride(0), part.shape[1], BLOCK=64)
    return out.relu()


def product_of_matrices(x: Tensor) -> Tensor:
    y = (x.T * 2).contiguous()
    out = torch.empty(x.shape[0], x.shape[0], dtype=x.dtype)
    product[(1, 1)](x, y, out, x.shape[0], x.shape[0], x.shape[1], BLOCK=16)
    return out.relu()


def counted(x: Tensor) -> Tensor:
    out = torch.zeros(2, dtype=x.dtype)
    count[_grid(x)](x, out, x.numel(), BLOCK=64)
    return out / x.numel()


def perturbed(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    perturb[_grid(x)](x, out, 7, 0.25, x.numel(), BLOCK=64)
    return out.sin()


def without_signs(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    looking_at_bits[_grid(x)](x, out, x.numel(), BLOCK=64)
    return out.sqrt()


def into_a_row(x: Tensor) -> Tensor:
    y = x * 2
    increment[(1,)](y[1], y.shape[1], BLOCK=64)
    return y.cos()


def autotuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out.sin()


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return into_empty(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return into_empty(gradients[0])


def forward_and_backward(x: Tensor) -> Tensor:
    return _Sum.apply(x) * 2  # type: ignore[no-any-return]  # torch does not annotate `apply`


def out_of_bounds(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    beyond[_grid(x)](x, out, x.numel(), BLOCK=64)
    return out.sin()


def reading_beyond(x: Tensor) -> Tensor:
    y = x.sin()
    out = torch.empty_like(x)
    neighbours[_grid(x)](y, out, x.numel(), BLOCK=64)
    return out.cos()


def counted_into_empty(x: Tensor) -> Tensor:
    out = torch.empty(2, dtype=x.dtype)
    count[_grid(x)](x, out, x.numel(), BLOCK=64)
    return out / x.numel()


def without_its_last_block(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    increment_into[(x.numel() // 64,)](x, out, x.numel(), BLOCK=64)
    return out.cos()


def a_part_of_a_buffer(x: Tensor) -> Tensor:
    """A healthy one: what is not written is not read."""
    out = torch.empty(x.numel() + 100, dtype=x.dtype)
    increment_into[_grid(x)](x, out, x.numel(), BLOCK=64)
    return out[: x.numel()].cos()


@triton.jit
def _zero_of(dtype):
    return tl.zeros([1], dtype.value)


@triton.jit
def between(a, out, low, high, BLOCK: tl.constexpr, DOUBLE: tl.constexpr):
    """Keep what lies strictly between two limits, or is above 9; others become 0."""
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i)
    kept = (x > low and x < high) or x > 9
    if DOUBLE and BLOCK > 1:
        x = x * 2
    tl.store(out + i, tl.where(kept, x, _zero_of(a.dtype.element_ty)))
