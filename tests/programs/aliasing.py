"""Healthy programs that read and write the same memory in many ways: views, caches, statistics, optimizers, `out=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Compile = Callable[[Any], Any]
PROGRAMS: dict[str, Callable[[Compile], object]] = {}


def program(function: Callable[[Compile], object]) -> Callable[[Compile], object]:
    PROGRAMS[function.__name__] = function
    return function


def numbers(*size: int) -> Tensor:
    return torch.arange(float(torch.Size(size).numel())).reshape(size) / 7 - 1


@torch.library.custom_op("aliasing_programs::gather_", mutates_args={"into", "count"})
def gather_(into: Tensor, x: Tensor, count: Tensor) -> Tensor:
    into.add_(x)
    count.mul_(2)
    return x + 1


@gather_.register_fake
def _(into: Tensor, x: Tensor, count: Tensor) -> Tensor:
    return torch.empty_like(x)


@program
def views(compile_: Compile) -> object:
    def f(x: Tensor) -> Any:
        a = x.t()
        a.mul_(2)
        x[::2] += 1
        b = x.view(-1)[3:9]
        b.neg_()
        x.diagonal().fill_(4)
        x.unfold(0, 2, 2).add_(1)
        return a.sum(0), b.clone(), x.permute(1, 0).contiguous(), x.narrow(1, 1, 2)

    return compile_(f)(numbers(6, 6))


@program
def chunks(compile_: Compile) -> object:
    def f(x: Tensor) -> Any:
        a, b, c = x.chunk(3)
        a.copy_(b)
        b.copy_(c)
        c.zero_()
        s = x.split(2, 1)
        s[0].add_(s[1])
        x.unbind(0)[0].mul_(3)
        return x * 2, a + b

    return compile_(f)(numbers(6, 6))


@program
def cache_by_index(compile_: Compile) -> object:
    def f(k: Tensor, v: Tensor, q: Tensor, i: Tensor) -> Tensor:
        k.index_copy_(0, i, q)
        v[:, 1:3] = q[0, 1:3]
        k[i] += 1
        return (q @ k.t()).softmax(-1) @ v

    return compile_(f)(numbers(8, 4), numbers(8, 4), numbers(2, 4), torch.tensor([2, 5]))


@program
def cache_by_slice(compile_: Compile) -> object:
    def f(k: Tensor, q: Tensor, n: int) -> Tensor:
        k[:, n : n + 1] = q
        return k[:, : n + 1].sum(1)

    compiled = compile_(f)
    return [compiled(torch.zeros(2, 6, 3), torch.ones(2, 1, 3), n) for n in (1, 2, 3)]


@program
def statistics(compile_: Compile) -> object:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    return [compile_(model)(torch.randn(5, 4)).sum().backward() for _ in range(2)]


@program
def given_outputs(compile_: Compile) -> object:
    def f(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
        torch.add(x, 1, out=one)
        torch.mul(one, 2, out=other)
        one.add_(other)
        return other + one

    return compile_(f)(numbers(4), torch.empty(4), torch.empty(4))


@program
def lists(compile_: Compile) -> object:
    def f(parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(parameters, 0.9)
        torch._foreach_add_(parameters, gradients, alpha=-0.1)
        torch._foreach_copy_(gradients, torch._foreach_sqrt([p * p for p in parameters]))
        return [p.sum() for p in parameters]

    return compile_(f)([numbers(3), numbers(4)], [numbers(3), numbers(4)])


@program
def sgd(compile_: Compile) -> object:
    return optimized(compile_, torch.optim.SGD, lr=0.1, momentum=0.9)


@program
def adam(compile_: Compile) -> object:
    return optimized(compile_, torch.optim.Adam, lr=0.1, foreach=True, capturable=True)


@program
def adamw(compile_: Compile) -> object:
    return optimized(compile_, torch.optim.AdamW, lr=0.1, amsgrad=True)


def optimized(compile_: Compile, kind: Any, **options: Any) -> object:
    model = nn.Linear(4, 4)
    optimizer = kind(model.parameters(), **options)
    step = compile_(optimizer.step)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        step()
    return None


@program
def other_dtypes(compile_: Compile) -> object:
    def f(x: Tensor) -> Any:
        v = x.view(torch.int32)
        v.add_(1)
        y = x.view(torch.int16).sum()
        x.mul_(2)
        return y, v * 2, torch.view_as_real(torch.view_as_complex(x.view(-1, 2)) * 2)

    return compile_(f)(numbers(4, 4))


@program
def in_place_chain(compile_: Compile) -> object:
    def f(x: Tensor) -> Any:
        y = x + 1
        y.mul_(2).add_(3)
        z = y.relu_()
        w = z[1:]
        w.sub_(z[:-1].clone())
        return y, w.cumsum(0), z.max()

    return compile_(f)(numbers(6, 3))


@program
def in_training(compile_: Compile) -> object:
    def f(x: Tensor, w: Tensor, state: Tensor) -> Tensor:
        h = F.relu(x @ w, inplace=True)
        state.add_(h.detach().mean(0))
        h = h * state
        h[0] = 0
        return h.sum()

    return compile_(f)(numbers(4, 4), torch.randn(4, 4, requires_grad=True), torch.ones(4)).backward()


@program
def scatters(compile_: Compile) -> object:
    def f(x: Tensor, i: Tensor, v: Tensor) -> Any:
        y = x.scatter(0, i, v)
        x.scatter_add_(0, i, v)
        y.index_add_(0, i, v)
        z = x.masked_fill(x > 1, 0)
        x.masked_fill_(x < 0, 9)
        x.index_put_((i,), v, accumulate=True)
        return y, z, x[i]

    return compile_(f)(numbers(8), torch.tensor([1, 4]), torch.tensor([3.0, 2.0]))


@program
def functional_scatters(compile_: Compile) -> object:
    def f(x: Tensor, s: Tensor) -> Any:
        a = torch.slice_scatter(x, s, 0, 1, 3)
        b = torch.select_scatter(a, s[0], 0, 0)
        c = torch.diagonal_scatter(b, torch.ones(4))
        d = torch.as_strided_scatter(c, torch.zeros(2), (2,), (3,), 1)
        x.add_(1)
        return a, b, c, d

    return compile_(f)(numbers(4, 4), numbers(2, 4))


@program
def custom_operators(compile_: Compile) -> object:
    def f(state: Tensor, x: Tensor) -> Any:
        y = state + 1
        a = gather_(y, x, state)
        b = gather_(y, a, x)
        return a, b, y, state * 2

    return compile_(f)(numbers(3, 3), numbers(3, 3))


@program
def reused_buffers(compile_: Compile) -> object:
    def f(x: Tensor, w: Tensor) -> Tensor:
        h = x
        for i in range(6):
            h = (h @ w).relu_() + h * (i + 1)
            h.add_(x)
        return h

    return compile_(f)(numbers(8, 8) / 8, torch.randn(8, 8) / 8)


@program
def overlapping_inputs(compile_: Compile) -> object:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    memory = numbers(12)
    return compile_(f)(memory[:6], memory[3:9])


@program
def loops(compile_: Compile) -> object:
    def f(x: Tensor, h: Tensor, out: Tensor) -> Any:
        for t in range(4):
            h = torch.tanh(x[t] + h)
            out[t] = h
        h.mul_(0.5)
        return h, out.flip(0)

    return compile_(f)(numbers(4, 3), torch.zeros(3), torch.zeros(4, 3))


@program
def averages(compile_: Compile) -> object:
    model, average = nn.Linear(4, 4), nn.Linear(4, 4)

    def f() -> None:
        with torch.no_grad():
            for a, b in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.1)

    return compile_(f)()


@program
def rolls(compile_: Compile) -> object:
    def f(x: Tensor) -> Tensor:
        x[1:] = x[1:] * 2
        x.copy_(x.roll(1))
        x.copy_(x.flip(0))
        return x.t().contiguous()

    return compile_(f)(numbers(5, 5))


@program
def detached(compile_: Compile) -> object:
    def f(x: Tensor) -> Any:
        y = x.detach()
        z = y.expand(3, *y.shape)
        s = z.sum(0)
        y.add_(1)
        return s, z.mean(0), x.unsqueeze(0).squeeze(0) * 2

    return compile_(f)(numbers(4))
