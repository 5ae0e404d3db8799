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
def scaled_sum(a, b, out, factor, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x, y = tl.load(a + i, i < n), tl.load(b + i, i < n)
    tl.store(out + i, (x + y) * factor.to(x.dtype), i < n)


@triton.jit
def larger(a, b, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.maximum(tl.load(a + i), tl.load(b + i)))


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
