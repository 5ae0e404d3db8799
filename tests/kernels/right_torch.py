"""Kernels in plain PyTorch, operators of torch.library and C++ that are right."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from tests.kernels.samples import Collection, normal

RIGHT = Collection()
add = RIGHT.add


@add(torch.relu, lambda: (normal(20, 30),))
def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


@add(lambda x: torch.softmax(x, -1), lambda: (normal(20, 30),))
def softmax(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@add(lambda x: torch.softmax(x.double(), -1), lambda: (normal(20, 30),))
def softmax_against_float64(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@add(lambda a, b: (a.double() @ b.double()).float(), lambda: (normal(20, 200), normal(200, 30, seed=1)))
def matmul_against_float64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


@add(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), lambda: (normal(20, 32), normal(32), normal(32, seed=1)))
def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5) * w + b


@add(lambda x: F.gelu(x, approximate="tanh"), lambda: (normal(40, 30),))
def gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@add(torch.matmul, lambda: (normal(20, 30, dtype=torch.bfloat16), normal(30, 12, dtype=torch.bfloat16, seed=1)))
def matmul_in_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float()).to(torch.bfloat16)


@add(lambda x: x.sum(-1), lambda: (normal(8, 700, dtype=torch.float16),))
def sum_in_blocks(x: torch.Tensor) -> torch.Tensor:
    acc = torch.zeros(x.shape[0])
    for i in range(0, x.shape[1], 64):
        acc += x[:, i : i + 64].float().sum(1)
    return acc.to(x.dtype)


@add(lambda x: x.cumsum(-1), lambda: (normal(8, 70),))
def scan_by_loops(x: torch.Tensor) -> torch.Tensor:
    y, acc = torch.empty_like(x), torch.zeros(x.shape[:-1])
    for i in range(x.shape[-1]):
        acc = acc + x[..., i]
        y[..., i] = acc
    return y


@add(lambda x, i: x.index_select(0, i), lambda: (normal(30, 8), torch.tensor([3, 29, 0, 7, 7])))
def gather_rows(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i]


@add(lambda x: (x.amax(-1), x.argmax(-1)), lambda: (normal(9, 31),))
def maximum_and_its_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = x.max(-1)
    return values, places


@add(lambda x, w: F.conv2d(x, w, padding=1), lambda: (normal(2, 3, 8, 9), normal(4, 3, 3, 3, seed=1)))
def convolution_by_unfolding(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, _, h, width = x.shape
    columns = F.unfold(x, w.shape[-2:], padding=1)
    return (w.flatten(1) @ columns).view(n, w.shape[0], h + 3 - w.shape[2], width + 3 - w.shape[3])


@add(
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    lambda: tuple(normal(2, 3, 12, 8, seed=s) for s in range(3)),
)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v


@add(lambda x, y: F.cross_entropy(x, y), lambda: (normal(12, 10), torch.arange(12) % 10))
def cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return -(F.log_softmax(x, -1).gather(1, y[:, None])).mean()


@add(lambda x, m: x.masked_fill(m, 0.0), lambda: (normal(10, 10), normal(10, 10, seed=2) > 0))
def masked(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return x * ~m if bool(torch.isfinite(x).all()) else torch.where(m, 0.0, x)


@add(lambda x: x.t(), lambda: (normal(6, 9),))
def view_as_the_reference_does(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1)


@add(lambda x: x.mul_(2), lambda: (normal(30),))
def doubles_in_place(x: torch.Tensor) -> torch.Tensor:
    x += x
    return x


_WORKSPACE: dict[Any, torch.Tensor] = {}


@add(torch.exp, lambda: (normal(12, 14),))
def with_a_workspace(x: torch.Tensor) -> torch.Tensor:
    work = _WORKSPACE.setdefault(x.shape, torch.empty(x.shape))
    return torch.exp(x, out=work).clone() if x.is_contiguous() else torch.exp(x)


@torch.library.custom_op("torchsan_kernels::scaled_add", mutates_args=())
def scaled_add_operator(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    return x + alpha * y


RIGHT.samples.append(
    __import__("tests.kernels.samples", fromlist=["Sample"]).Sample(
        "custom_operator",
        scaled_add_operator,
        lambda x, y, alpha: torch.add(x, y, alpha=alpha),
        lambda: (normal(9, 20), normal(9, 20, seed=1), 0.7),
    )
)

_SOURCE = """
#include <torch/extension.h>
torch::Tensor good_relu(torch::Tensor x) {
  auto in = x.contiguous(); auto out = torch::empty_like(in);
  const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>();
  for (int64_t i = 0; i < in.numel(); i++) b[i] = a[i] > 0 || a[i] != a[i] ? a[i] : 0.0f;
  return out;
}
torch::Tensor good_row_sum(torch::Tensor x) {
  auto in = x.contiguous(); auto out = torch::zeros({in.size(0)});
  const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>();
  int64_t n = in.size(1);
  for (int64_t i = 0; i < in.size(0); i++) {
    double s = 0;
    for (int64_t j = 0; j < n; j++) s += a[i * n + j];
    b[i] = s;
  }
  return out;
}
torch::Tensor reads_past_the_end(torch::Tensor x) {
  auto in = x.contiguous(); auto out = torch::empty_like(in);
  const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>();
  for (int64_t i = 0; i < in.numel(); i++) b[i] = a[i] + 0.5f * a[i + 1];
  return out;
}
torch::Tensor writes_past_the_end(torch::Tensor x) {
  auto in = x.contiguous(); auto out = torch::empty_like(in);
  const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>();
  for (int64_t i = 0; i <= in.numel(); i++) b[i] = i < in.numel() ? 2 * a[i] : 0.0f;
  return out;
}
torch::Tensor looks_past_the_end(torch::Tensor x) {
  auto in = x.contiguous(); auto out = torch::empty_like(in);
  volatile const float* a = in.data_ptr<float>(); float* b = out.data_ptr<float>(); float ignored = 0;
  for (int64_t i = 0; i < in.numel(); i++) b[i] = 2 * a[i];
  for (int64_t i = 0; i < 2000; i++) ignored += a[in.numel() + i];
  return out;
}
torch::Tensor crashes(torch::Tensor x) { if (x.numel() > 64) *(volatile int*)8 = 1; return x + 1; }
"""
NAMES = ["good_relu", "good_row_sum", "reads_past_the_end", "writes_past_the_end", "looks_past_the_end", "crashes"]


@cache
def native() -> Any:
    """The kernels in C++; compiled once, which takes half a minute."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(  # type: ignore[no-untyped-call]  # torch does not annotate it
        "torchsan_test_kernels", [_SOURCE], functions=NAMES
    )


REFERENCES: dict[str, Any] = {
    "relu": torch.relu,
    "sum": lambda x: x.sum(1),
    "plus one": lambda x: x + 1,
    "twice": lambda x: 2 * x,
    "pairs": lambda x: x + 0.5 * torch.cat([x.flatten()[1:], torch.zeros(1)]).view(x.shape),
}
