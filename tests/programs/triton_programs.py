"""Healthy programs that Inductor compiles to Triton, small enough for an interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Healthy:
    """`run` compiles and calls something. `templates` asks for matrix products in Triton."""

    name: str
    run: Callable[[], object]
    templates: bool = False


def _called(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> Callable[[], object]:
    return lambda: torch.compile(function, **options)(*(i.clone() for i in inputs))


def _trained(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    def run() -> None:
        leaves = [i.clone().requires_grad_(i.is_floating_point()) for i in inputs]
        torch.compile(function)(*leaves).square().sum().backward()

    return run


def _seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


X, W, B = _seeded(16, 24), _seeded(24, 32), _seeded(32)
INDEX = torch.arange(40) % 16
IMAGE = _seeded(2, 3, 8, 8)


def _training_step() -> None:
    model = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.25), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = F.cross_entropy(torch.compile(model)(X), torch.arange(16) % 8)
    loss.backward()
    torch.compile(optimizer.step)()


def _momentum() -> None:
    weights = [nn.Parameter(_seeded(5, 7)), nn.Parameter(_seeded(9))]
    for w in weights:
        w.grad = torch.ones_like(w)
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    torch.compile(optimizer.step)()


def _sizes() -> None:
    f = torch.compile(lambda x: (x * 2).softmax(-1).sum(0), dynamic=True)
    for n in (5, 17, 33):
        f(_seeded(n, n + 1))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * 0.25
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def _recurrent() -> None:
    cell, state = nn.GRUCell(12, 20), _seeded(5, 20).requires_grad_()

    def steps(x: Tensor, h: Tensor) -> Tensor:
        for _ in range(3):
            h = cell(x, h)
        return h

    torch.compile(steps)(_seeded(5, 12), state).square().sum().backward()


def _optimizers() -> None:
    kinds: list[tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = [
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adagrad, {}),
    ]
    for kind, options in kinds:
        weights = [nn.Parameter(_seeded(5, 7)), nn.Parameter(_seeded(9))]
        optimizer = kind(weights, foreach=True, **options)
        for _ in range(2):
            for w in weights:
                w.grad = w.detach().cos()
            torch.compile(optimizer.step)()


def _bags(w: Tensor, i: Tensor, scale: Tensor) -> Tensor:
    bags = (F.embedding(i, w, padding_idx=0) * scale[..., None]).sum(1)
    return F.normalize(bags, dim=-1) @ w.T


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    keep = torch.arange(q.shape[-2]) < lengths[:, None, None]
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    return F.dropout(weights, 0.2) @ v


def _quantised(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    scales = [t.abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127 for t in (x, w)]
    a, b = ((t / s).round().clamp(-128, 127).to(torch.int8) for t, s in zip((x, w), scales, strict=True))
    return a, (a.to(torch.int32) @ b.to(torch.int32).T).float() * scales[0] * scales[1].T


def _gated_and_rotated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    angles = torch.arange(x.shape[0])[:, None] * (10000.0 ** (-torch.arange(0, x.shape[1], 2) / x.shape[1]))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    h = F.rms_norm(x, x.shape[1:])
    even, odd = h[:, ::2], h[:, 1::2]
    h = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return x + (F.silu(h @ gate) * (h @ up)) @ down


def _reduced_by_index(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    largest = torch.zeros(16).scatter_reduce(0, i, x, "amax", include_self=False)
    return largest, torch.zeros(16).index_reduce(0, i, x, "mean", include_self=False), torch.bincount(i, minlength=16)


HEALTHY = [
    Healthy(name="recurrent", run=_recurrent),
    Healthy(name="optimizers_of_many", run=_optimizers),
    Healthy(name="bags_of_embeddings", run=_trained(_bags, _seeded(16, 8), INDEX.reshape(8, 5), _seeded(8, 5))),
    Healthy(
        name="masked_attention_with_dropout",
        run=_trained(_masked_attention, *[_seeded(2, 8, 16)] * 3, torch.tensor([8, 3])),
    ),
    Healthy(name="quantised", run=_called(_quantised, X, _seeded(10, 24))),
    Healthy(
        name="gated_and_rotated_in_float16",
        run=_trained(_gated_and_rotated, X.half(), *[(_seeded(*s) / 5).half() for s in ((24, 32), (24, 32), (32, 24))]),
    ),
    Healthy(name="reduced_by_index", run=_called(_reduced_by_index, _seeded(40), INDEX)),
    Healthy(name="largest_of_rows", run=_called(lambda x: (x.topk(3, -1), x.cummax(1), x.cumprod(-1)), X)),
    Healthy(name="training_step", run=_training_step),
    Healthy(name="dropout", run=_trained(lambda x: F.dropout(x, 0.5) * 2, X)),
    Healthy(name="random", run=_called(lambda x: torch.rand(30) + torch.randn(30) + torch.randint(9, (30,)), X)),
    Healthy(name="pointwise", run=_trained(lambda x: F.gelu(x) + x.tanh() * x.sigmoid().log1p(), X)),
    Healthy(name="softmax", run=_trained(lambda x: x.log_softmax(-1), X)),
    Healthy(name="layer_norm", run=_trained(lambda x, w: F.layer_norm(x, (24,), w), X, _seeded(24))),
    Healthy(name="rms_norm", run=_trained(lambda x, w: F.rms_norm(x, (24,), w), X, _seeded(24))),
    Healthy(name="group_norm", run=_trained(lambda x: F.group_norm(x, 3), IMAGE)),
    Healthy(name="batch_norm", run=_trained(lambda x: F.batch_norm(x, None, None, training=True), IMAGE)),
    Healthy(name="attention", run=_trained(_attention, *[_seeded(2, 8, 16)] * 3)),
    Healthy(name="sgd_with_momentum", run=_momentum),
    Healthy(name="scatter_add", run=_trained(lambda x, i: torch.zeros(16).scatter_add(0, i, x), _seeded(40), INDEX)),
    Healthy(
        name="index_put",
        run=_called(lambda i: torch.zeros(16).index_put((i,), torch.tensor(1.0), accumulate=True), INDEX),
    ),
    Healthy(name="embedding", run=_trained(lambda w, i: F.embedding(i, w).sin(), _seeded(16, 8), INDEX)),
    Healthy(name="gather", run=_trained(lambda x, i: x.gather(0, i).exp(), _seeded(40), INDEX)),
    Healthy(name="sort", run=_called(lambda x: x.sort(-1), _seeded(3, 5))),
    Healthy(name="cumsum", run=_trained(lambda x: x.cumsum(-1), X)),
    Healthy(name="logcumsumexp", run=_called(lambda x: x.logcumsumexp(-1), X)),
    Healthy(name="argmax", run=_called(lambda x: ((x * 2).argmax(-1), x.argmin(0)), X)),
    Healthy(name="variance", run=_trained(lambda x: x.var(-1) + x.std(-1), X)),
    Healthy(name="any_and_all", run=_called(lambda x: ((x > 0).any(-1), (x > 0).all(0), x.amax(-1), x.prod(-1)), X)),
    Healthy(name="float16", run=_trained(lambda x: (x.exp() / 3).sum(0), X.half())),
    Healthy(name="bfloat16", run=_trained(lambda x: F.silu(x).sum(0), X.bfloat16())),
    Healthy(name="integers", run=_called(lambda i: (i // 3 + i % 5 - (i << 2)) ^ 7, torch.arange(-50, 50))),
    Healthy(name="dynamic_shapes", run=_sizes),
    Healthy(name="concatenation", run=_trained(lambda x: torch.cat([x.sin(), x[:, :5] * 2], 1).relu(), X)),
    Healthy(name="pooling", run=_trained(lambda x: F.max_pool2d(x * 2, 2) + F.avg_pool2d(x, 2), IMAGE)),
    Healthy(name="interpolation", run=_called(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), IMAGE)),
    Healthy(name="an_input_in_place", run=_called(lambda x: x.mul_(2).add_(1).sum(), X)),
    Healthy(name="large_reduction", run=_called(lambda x: (x * 2).sum() + x.mean(), _seeded(40000))),
    Healthy(name="product", run=_called(lambda x, w, b: (x @ w + b).relu(), X, W, B), templates=True),
    Healthy(
        name="products_trained", run=_trained(lambda x, w, v: (x @ w).sin() @ v, X, W, _seeded(32, 16)), templates=True
    ),
    Healthy(name="batched_products", run=_called(torch.bmm, _seeded(2, 16, 24), _seeded(2, 24, 16)), templates=True),
    Healthy(
        name="bfloat16_product",
        run=_called(lambda x, w: (x @ w).relu(), X.bfloat16(), W.bfloat16()),
        templates=True,
    ),
]
