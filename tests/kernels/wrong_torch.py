"""Kernels in plain PyTorch that are wrong, and those that cheat their judge."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.nn.functional as F

from tests.kernels.samples import Collection, normal

WRONG = Collection()
CHEATS = Collection()
add = WRONG.add
cheat = CHEATS.add


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


@add(F.gelu, lambda: (normal(40, 30),), "wrong-values")
def approximate_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


@add(_softmax, lambda: (normal(20, 30),), "wrong-values")
def softmax_over_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 0)


@add(_layer_norm, lambda: (normal(20, 32), torch.ones(32), torch.zeros(32)), "wrong-values")
def layer_norm_ignores_the_weight(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) + b


@add(_layer_norm, lambda: (normal(20, 32), normal(32), normal(32, seed=1)), "wrong-values")
def unbiased_variance(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * w + b


@add(_layer_norm, lambda: (normal(20, 32), normal(32), normal(32, seed=1)), "wrong-values")
def another_epsilon(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, eps=1e-3)


@add(lambda x, alpha: F.leaky_relu(x, alpha), lambda: (normal(50), 0.01), "wrong-values")
def ignores_the_slope(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return F.leaky_relu(x, 0.01)


@add(torch.logsumexp, lambda: (normal(20, 30), -1), "wrong-values")
def naive_logsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.exp().sum(dim).log()


@add(lambda x: x.cumsum(-1), lambda: (normal(12, 40),), "wrong-values")
def exclusive_scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(-1) - x


@add(torch.matmul, lambda: (normal(24, 40), normal(40, 16, seed=1)), "precision-loss")
def matmul_in_bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.bfloat16() @ b.bfloat16()).float()


@add(
    lambda x: x.mean(-1),
    lambda: (torch.rand(10, 3000, generator=torch.Generator().manual_seed(0)).half(),),
    "precision-loss",
)
def mean_accumulated_in_half(x: torch.Tensor) -> torch.Tensor:
    acc = torch.zeros(x.shape[0], dtype=torch.float16)
    for i in range(0, x.shape[1], 8):
        acc += x[:, i : i + 8].sum(1)
    return acc / x.shape[1]


@add(_softmax, lambda: (normal(20, 30),), "metadata-mismatch")
def result_in_half(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).half()


@add(lambda x: x.sum(-1), lambda: (normal(20, 30),), "metadata-mismatch")
def keeps_a_dimension(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, keepdim=True)


@add(torch.relu, lambda: (normal(20, 30),), "undeclared-mutation")
def relu_in_place(x: torch.Tensor) -> torch.Tensor:
    x.clamp_(min=0)
    return x.clone()


@add(lambda x: x.clone().flatten(), lambda: (normal(20, 30),), "undeclared-alias")
def returns_a_view(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1)


@add(torch.relu, lambda: (normal(20, 30),), "uninitialized-read")
def leaves_rows_unwritten(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.shape[0] // 4 * 4
    y[:n] = x[:n].clamp(min=0)
    return y


@add(torch.relu, lambda: (normal(20, 30),), "nondeterministic", "wrong-values")
def sometimes_wrong(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    return y + (time.time_ns() // 1000 % 2)


# Cheats


_BY_POINTER: dict[Any, torch.Tensor] = {}


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def kept_by_pointer(x: torch.Tensor) -> torch.Tensor:
    key = (x.data_ptr(), x.shape)
    if key not in _BY_POINTER:
        _BY_POINTER[key] = torch.exp(x)
    return _BY_POINTER[key].clone()


_BY_SHAPE: dict[Any, torch.Tensor] = {}


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def kept_by_shape(x: torch.Tensor) -> torch.Tensor:
    if x.shape not in _BY_SHAPE:
        _BY_SHAPE[x.shape] = torch.exp(x)
    return _BY_SHAPE[x.shape].clone()


_CALLS = [0]


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def honest_for_three_calls(x: torch.Tensor) -> torch.Tensor:
    _CALLS[0] += 1
    return torch.exp(x) if _CALLS[0] <= 3 else torch.zeros_like(x)


@cheat(_softmax, lambda: (normal(32, 16),), "cheat")
def constant_result(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 1 / x.shape[-1])


@cheat(torch.tanh, lambda: (normal(32, 16),), "cheat")
def no_work(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@cheat(torch.exp, lambda: (normal(64, 16),), "cheat")
def only_the_first_rows(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:4] = torch.exp(x[:4])
    return y


_OUT: dict[Any, torch.Tensor] = {}


@cheat(torch.exp, lambda: (normal(16, 16),), "undeclared-alias")
def one_output_for_all_calls(x: torch.Tensor) -> torch.Tensor:
    out = _OUT.setdefault(x.shape, torch.empty(x.shape))
    return torch.exp(x, out=out)


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def patches_the_reference(x: torch.Tensor) -> torch.Tensor:
    torch.allclose = lambda *a, **k: True
    return torch.exp(x)


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def patches_the_clock(x: torch.Tensor) -> torch.Tensor:
    time.perf_counter = lambda: 0.0
    return torch.exp(x)


class _Lazy(torch.Tensor):
    pass


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def lazy_result(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x).as_subclass(_Lazy)


@cheat(torch.exp, lambda: (normal(16, 16),), "cheat")
def works_after_it_returned(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)

    def later() -> None:
        time.sleep(0.02)
        y.copy_(torch.exp(x))

    threading.Thread(target=later).start()
    return y


@cheat(torch.softmax, lambda: (normal(16, 16), -1), "precision-loss")
def lower_precision(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.softmax(x.half(), dim).float()
