"""Kernels that nobody here wrote: those of liger-kernel, against PyTorch's operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from liger_kernel.ops import (
    cross_entropy,
    dyt,
    geglu,
    group_norm,
    jsd,
    kl_div,
    layer_norm,
    relu_squared,
    rms_norm,
    rope,
    softmax,
    sparsemax,
    swiglu,
    tvd,
)

from tests.kernels.samples import Collection, normal

LIGER = Collection()
add = LIGER.add


@add(lambda x: torch.softmax(x, -1), lambda: (normal(6, 40),))
def liger_softmax(x: Any) -> Any:
    return softmax.LigerSoftmaxFunction.apply(x)


@add(lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, lambda: (normal(6, 40), normal(40)))
def liger_rms_norm(x: Any, w: Any) -> Any:
    return rms_norm.LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False)


@add(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-6), lambda: (normal(6, 40), normal(40), normal(40, seed=1)))
def liger_layer_norm(x: Any, w: Any, b: Any) -> Any:
    return layer_norm.LigerLayerNormFunction.apply(x, w, b, 1e-6)


@add(lambda a, b: F.silu(a) * b, lambda: (normal(6, 40), normal(6, 40, seed=1)))
def liger_swiglu(a: Any, b: Any) -> Any:
    return swiglu.LigerSiLUMulFunction.apply(a, b)


@add(lambda a, b: F.gelu(a, approximate="tanh") * b, lambda: (normal(6, 40), normal(6, 40, seed=1)))
def liger_geglu(a: Any, b: Any) -> Any:
    return geglu.LigerGELUMulFunction.apply(a, b)


@add(lambda x, y: F.cross_entropy(x, y), lambda: (normal(8, 40), torch.arange(8) * 5 % 40))
def liger_cross_entropy(x: Any, y: Any) -> Any:
    return cross_entropy.LigerCrossEntropyFunction.apply(x.clone(), y, None)[0]


@add(lambda x: F.relu(x).square(), lambda: (normal(6, 40),))
def liger_relu_squared(x: Any) -> Any:
    return relu_squared.LigerReLUSquaredFunction.apply(x)


@add(lambda x, a, g, b: g * torch.tanh(a * x) + b, lambda: (normal(6, 40), normal(1), normal(40), normal(40, seed=1)))
def liger_dyt(x: Any, a: Any, g: Any, b: Any) -> Any:
    return dyt.LigerDyTFunction.apply(x, a, g, b)


@add(
    lambda x, w, b: F.group_norm(x, 4, w, b, 1e-6),
    lambda: (normal(3, 8, 12), normal(8), normal(8, seed=1)),
)
def liger_group_norm(x: Any, w: Any, b: Any) -> Any:
    return group_norm.LigerGroupNormFunction.apply(x, w, b, x.shape[1], 4, 1e-6)


@add(
    # It takes the logarithm of no target below 1e-10, by design; PyTorch does.
    lambda x, y: (y * (y.clamp(min=1e-10).log() - x)).sum() / x.shape[0],
    lambda: (normal(6, 40).log_softmax(-1), normal(6, 40, seed=1).softmax(-1)),
)
def liger_kl_div(x: Any, y: Any) -> Any:
    return kl_div.LigerKLDivLossFunction.apply(x, y, "batchmean", False, 1e-10)


@add(
    lambda p, q: 0.5 * (p - q).abs().sum() / p.shape[0],
    lambda: (normal(6, 40).softmax(-1), normal(6, 40, seed=1).softmax(-1)),
)
def liger_tvd(p: Any, q: Any) -> Any:
    return tvd.LigerTVDLossFunction.apply(p, q, None, "batchmean", -100)


def _sparsemax(x: torch.Tensor) -> torch.Tensor:
    z = torch.sort(x, -1, descending=True).values
    k = torch.arange(1, x.shape[-1] + 1)
    support = 1 + k * z > z.cumsum(-1)
    n = support.sum(-1, keepdim=True)
    tau = (torch.where(support, z, 0.0).sum(-1, keepdim=True) - 1) / n
    return (x - tau).clamp(min=0)


@add(_sparsemax, lambda: (normal(5, 24),))
def liger_sparsemax(x: Any) -> Any:
    return sparsemax.LigerSparsemaxFunction.apply(x, -1)


def _jsd(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    m = torch.log(0.5 * p.exp() + 0.5 * q.exp())
    return (
        0.5
        * (F.kl_div(m, q, reduction="sum", log_target=True) + F.kl_div(m, p, reduction="sum", log_target=True))
        / p.shape[0]
    )


@add(_jsd, lambda: (normal(6, 40).log_softmax(-1), normal(6, 40, seed=1).log_softmax(-1)))
def liger_jsd(p: Any, q: Any) -> Any:
    return jsd.LigerJSDFunction.apply(p, q, None, 0.5, -100)


def _rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cos[:, None] + rotated * sin[:, None]

    return turned(q), turned(k)


def _angles() -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.outer(torch.arange(6.0), 1 / 10 ** (torch.arange(4) / 4)).repeat(1, 2)[None]
    return a.cos(), a.sin()


@add(_rope, lambda: (normal(1, 2, 6, 8), normal(1, 2, 6, 8, seed=1), *_angles()))
def liger_rope(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return rope.LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin)
