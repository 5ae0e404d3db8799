"""Further kernels, as people and language models write them: plain PyTorch, operators, compiled functions and C++."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from tests.kernels.samples import Collection, Sample, normal

WRONG, RIGHT = Collection(), Collection()
wrong, right = WRONG.add, RIGHT.add


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _heads() -> tuple[torch.Tensor, ...]:
    return normal(2, 20, 8), normal(2, 28, 8, seed=1), normal(2, 28, 8, seed=2)


# Wrong: results that are kept


_CORNERS: dict[Any, torch.Tensor] = {}


@wrong(torch.exp, lambda: (normal(12, 16),), "cheat")
def kept_by_a_corner(x: torch.Tensor) -> torch.Tensor:
    key = (x.shape, x.flatten()[0].item() if x.numel() else 0)
    return _CORNERS.setdefault(key, torch.exp(x)).clone()


_PREVIOUS: list[torch.Tensor] = []


@wrong(torch.exp, lambda: (normal(12, 16),), "cheat")
def result_of_the_call_before(x: torch.Tensor) -> torch.Tensor:
    _PREVIOUS.append(torch.exp(x))
    last = _PREVIOUS[-2] if len(_PREVIOUS) > 1 else _PREVIOUS[-1]
    return last.clone() if last.shape == x.shape else torch.exp(x)


class _Module(torch.nn.Module):
    """Keeps the running maximum of all that it was ever given."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = -math.inf

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, x.max().item()) if x.numel() else self.largest
        return x / self.largest


WRONG.samples.append(Sample("running_maximum", _Module(), lambda x: x / x.max(), lambda: (normal(12, 16),), ("cheat",)))


# Wrong: transcription errors


@wrong(_softmax, lambda: (normal(12, 16),), "wrong-values")
def other_axis_for_squares(x: torch.Tensor) -> torch.Tensor:
    dim = next(d for d in range(x.dim()) if x.shape[d] == x.shape[-1])
    return torch.softmax(x, dim)


@wrong(_rms_norm, lambda: (normal(10, 32), normal(32, seed=1)), "wrong-values")
def rms_norm_of_zeros_divides_by_zero(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * x.pow(2).mean(-1, keepdim=True).rsqrt() * w


@wrong(lambda x: x.square(), lambda: (normal(10, 32),), "wrong-values")
def drops_the_tail_of_a_row(x: torch.Tensor) -> torch.Tensor:
    y, n = torch.zeros_like(x), x.shape[-1] // 8 * 8
    y[..., :n] = x[..., :n] * x[..., :n]
    return y


@wrong(lambda x: x.mean(-1), lambda: (normal(10, 64),), "wrong-values")
def divides_by_the_examples_size(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1) / 64


@wrong(lambda x: x.var(-1), lambda: (normal(10, 40),), "wrong-values")
def biased_variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1, unbiased=False)


@wrong(F.gelu, lambda: (normal(10, 40),), "wrong-values", "precision-loss")
def gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@wrong(lambda x: x * 2, lambda: (normal(30, 20).t(),), "wrong-values", "out-of-bounds-read")
def ignores_the_strides_of_a_transposed_example(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided(x.shape, (x.shape[1], 1)) * 2


@wrong(lambda x: x.argmax(-1), lambda: (normal(10, 40),), "metadata-mismatch")
def argmax_in_int32(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(-1).int()


@wrong(lambda x: x[0].clone(), lambda: (normal(10, 40),), "undeclared-alias")
def first_row_as_a_view(x: torch.Tensor) -> torch.Tensor:
    return x[0]


@wrong(lambda x, y: torch.cat([x, y], -1), lambda: (normal(6, 10), normal(6, 12, seed=1)), "uninitialized-read")
def concatenates_one_column_short(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(*x.shape[:-1], x.shape[-1] + y.shape[-1])
    out[..., : x.shape[-1]] = x
    out[..., x.shape[-1] : -1] = y[..., :-1]
    return out


@wrong(_attention, _heads, "wrong-values")
def attention_without_rescaling(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out, total, largest = torch.zeros_like(q), torch.zeros(*q.shape[:-1], 1), torch.full((*q.shape[:-1], 1), -math.inf)
    for i in range(0, k.shape[-2], 16):
        s = q @ k[..., i : i + 16, :].transpose(-1, -2) / math.sqrt(q.shape[-1])
        largest = torch.maximum(largest, s.amax(-1, keepdim=True))
        p = (s - largest).exp()
        out, total = out + p @ v[..., i : i + 16, :], total + p.sum(-1, keepdim=True)
    return out / total


@wrong(torch.bmm, lambda: (normal(8, 6, 10), normal(8, 10, 5, seed=1)), "cheat")
def only_the_first_batches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
    half = a.shape[0] // 2
    out[:half] = a[:half] @ b[:half]
    return out


@wrong(lambda a, b: a @ b, lambda: (normal(16, 400).half(), normal(400, 8, seed=1).half()), "precision-loss")
def product_added_up_in_half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for i in range(a.shape[1]):
        out += a[:, i : i + 1] * b[i : i + 1]
    return out


@wrong(
    lambda x, v, w: F.silu(x @ v) @ w,
    lambda: (normal(16, 64), normal(64, 128, seed=1) / 8, normal(128, 32, seed=2) / 11),
    "precision-loss",
)
def perceptron_in_bfloat16(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(x.bfloat16() @ v.bfloat16())
    return (hidden @ w.bfloat16()).to(x.dtype)


@wrong(torch.exp, lambda: (normal(12, 16),), "cheat")
def patches_comparisons(x: torch.Tensor) -> torch.Tensor:
    torch.testing.assert_close = lambda *a, **k: None
    torch.Tensor.allclose = lambda *a, **k: True  # type: ignore[method-assign]  # that is the cheat
    return torch.exp(x) * 1.5


@torch.library.custom_op("torchsan_kernels::leaky", mutates_args=())
def _leaky(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.where(x > 0, x, x * 0.01)


WRONG.samples.append(
    Sample("operator_with_a_fixed_slope", _leaky, F.leaky_relu, lambda: (normal(9, 20), 0.01), ("wrong-values",))
)


@cache
def _compiled(function: Any) -> Any:
    return torch.compile(function)


@wrong(lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (normal(6, 40),), "wrong-values", "precision-loss")
def compiled_layer_norm_of_squares(x: torch.Tensor) -> torch.Tensor:
    def norm(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square() + 1e-5).sqrt()

    return torch.compile(norm, dynamic=True)(x)


# Right: other algorithms, other orders


@right(lambda x: x.var(-1, unbiased=False), lambda: (normal(6, 50),))
def variance_of_welford(x: torch.Tensor) -> torch.Tensor:
    mean, m2 = torch.zeros(x.shape[:-1]), torch.zeros(x.shape[:-1])
    for n in range(x.shape[-1]):
        delta = x[..., n] - mean
        mean = mean + delta / (n + 1)
        m2 = m2 + delta * (x[..., n] - mean)
    return m2 / x.shape[-1]


@right(_softmax, lambda: (normal(6, 50),))
def softmax_in_blocks(x: torch.Tensor) -> torch.Tensor:
    largest, total = torch.full((*x.shape[:-1], 1), -math.inf), torch.zeros(*x.shape[:-1], 1)
    for part in torch.split(x, 16, -1):
        new = torch.maximum(largest, part.amax(-1, keepdim=True))
        total = total * (largest - new).exp() + (part - new).exp().sum(-1, keepdim=True)
        largest = new
    return (x - largest).exp() / total


@right(lambda a, b: a @ b, lambda: (normal(16, 300).half(), normal(300, 8, seed=1).half()))
def product_in_half_added_up_in_single(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(a.shape[0], b.shape[1])
    for i in range(0, a.shape[1], 32):
        out += a[:, i : i + 32].float() @ b[i : i + 32].float()
    return out.to(a.dtype)


@right(_attention, _heads)
def attention_in_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out, total, largest = torch.zeros_like(q), torch.zeros(*q.shape[:-1], 1), torch.full((*q.shape[:-1], 1), -math.inf)
    for i in range(0, k.shape[-2], 16):
        s = q @ k[..., i : i + 16, :].transpose(-1, -2) / math.sqrt(q.shape[-1])
        new = torch.maximum(largest, s.amax(-1, keepdim=True))
        p, scale = (s - new).exp(), (largest - new).exp()
        out, total = out * scale + p @ v[..., i : i + 16, :], total * scale + p.sum(-1, keepdim=True)
        largest = new
    return out / total


@right(lambda x, y: x.add_(y), lambda: (normal(9, 20), normal(9, 20, seed=1)))
def in_place_by_contract(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(x + y)
    return x


def _dropped(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) >= p
    return x * kept / (1 - p)


@right(_dropped, lambda: (normal(9, 20), 0.25, 1234))
def random_by_its_seed(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(x.shape, generator=generator) < p, torch.zeros(()), x / (1 - p))


@right(lambda x: x.sum(-1), lambda: (normal(6, 200),))
def sum_with_compensation(x: torch.Tensor) -> torch.Tensor:
    total, lost = torch.zeros(x.shape[:-1]), torch.zeros(x.shape[:-1])
    for part in x.unbind(-1):
        y = part - lost
        new = total + y
        total, lost = new, (new - total) - y
    return total


@right(lambda x: x.cumsum(-1), lambda: (normal(6, 70),))
def scan_in_blocks(x: torch.Tensor) -> torch.Tensor:
    parts, carry = [], torch.zeros(*x.shape[:-1], 1)
    for part in torch.split(x, 16, -1):
        parts.append(part.cumsum(-1) + carry)
        carry = parts[-1][..., -1:]
    return torch.cat(parts, -1)


@right(F.cross_entropy, lambda: (normal(9, 40), torch.arange(9) * 5 % 40))
def cross_entropy_in_chunks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = sum(
        (part.logsumexp(-1) - part.gather(-1, t[:, None])[:, 0]).sum()
        for part, t in zip(torch.split(x, 4), torch.split(y, 4), strict=True)
    )
    return torch.as_tensor(total) / x.shape[0]


@lru_cache(maxsize=8)
def _angles(n: int, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.outer(torch.arange(n, dtype=torch.float32), 10000.0 ** -(torch.arange(half) / half))
    return a.cos(), a.sin()


def _rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    a = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32), 10000.0 ** -(torch.arange(half) / half))
    one, two = x.chunk(2, -1)
    return torch.cat([one * a.cos() - two * a.sin(), one * a.sin() + two * a.cos()], -1)


@right(_rotated, lambda: (normal(3, 10, 16),))
def rotary_with_a_table_that_is_kept(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    cos, sin = _angles(x.shape[-2], half)
    out = torch.empty_like(x)
    one, two = x[..., :half], x[..., half:]
    out[..., :half] = one * cos - two * sin
    out[..., half:] = two * cos + one * sin
    return out


@right(
    lambda x: F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype),
    lambda: (normal(6, 40, dtype=torch.bfloat16),),
)
def layer_norm_of_bfloat16_in_single(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    return (centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype)


@right(_softmax, lambda: (normal(6, 40),))
def compiled_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.compile(lambda x: torch.softmax(x, -1), dynamic=True)(x)


@right(lambda x: x.topk(3, -1).values, lambda: (normal(6, 40),))
def largest_by_sorting(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1, descending=True).values[..., :3].clone()


_SOURCE = """
#include <torch/extension.h>
#include <map>
using torch::Tensor;
Tensor drops_the_tail(Tensor x) {
  auto in = x.contiguous(); auto out = torch::empty_like(in);
  const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>();
  for (int64_t i = 0; i + 4 <= in.numel(); i += 4) for (int j = 0; j < 4; j++) b[i + j] = 2 * a[i + j];
  return out;
}
Tensor ignores_strides(Tensor x) {
  auto out = torch::empty(x.sizes(), x.options());
  const float* a = x.data_ptr<float>(); float* b = out.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) b[i] = 2 * a[i];
  return out;
}
Tensor keeps_by_pointer(Tensor x) {
  static std::map<void*, Tensor> kept;
  auto found = kept.find(x.data_ptr());
  if (found == kept.end() || found->second.sizes() != x.sizes()) kept[x.data_ptr()] = 2 * x;
  return kept[x.data_ptr()].clone();
}
Tensor scales_its_argument(Tensor x) { auto y = x.clone(); x.mul_(2); return y * 2; }
Tensor good_twice(Tensor x) {
  auto in = x.contiguous(); auto out = torch::empty_like(in); int64_t n = in.numel(), i = 0;
  const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>();
  for (; i + 4 <= n; i += 4) for (int j = 0; j < 4; j++) b[i + j] = 2 * a[i + j];
  for (; i < n; i++) b[i] = 2 * a[i];
  return out;
}
"""
NATIVE = {
    "drops_the_tail": "uninitialized-read",
    "ignores_strides": "wrong-values",
    "keeps_by_pointer": "cheat",
    "scales_its_argument": "undeclared-mutation",
    "good_twice": "",
}
"""The kernels in C++, each of which should give twice its argument, and what is to be found."""


@cache
def native() -> Any:
    """Compiled once, which takes half a minute."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(  # type: ignore[no-untyped-call]  # torch does not annotate it
        "torchsan_other_kernels", [_SOURCE], functions=list(NATIVE)
    )
