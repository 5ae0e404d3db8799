"""Faults of every size: an operator times 1 + error, in a kernel, a library call, a decomposition or a pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config
import torch._inductor.decomposition
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch._inductor.select_algorithm import extern_kernels

Site = Callable[[str, float], Any]
"""Plants a fault: the name of an operator, and by how much its result is too large."""


_FACTOR = torch.ones(1, dtype=torch.float64)
"""What kernels with a fault read when they run, so that one compile does for every size of error."""


@contextmanager
def in_kernel(op: str, error: float) -> Iterator[None]:
    """The C++ of an elementwise operator is off."""
    with torch._inductor.config.patch(fx_graph_cache=False):
        undo = []
        for overrides in (CppOverrides, CppVecOverrides):
            real = vars(overrides)[op]
            undo.append((overrides, real))
            setattr(overrides, op, staticmethod(_scaled_text(real.__func__)))
        _FACTOR.fill_(1 + error)
        try:
            yield
        finally:
            for overrides, real in undo:
                setattr(overrides, op, real)


def _scaled_text(real: Callable[..., str]) -> Callable[..., str]:
    factor = f"*reinterpret_cast<const volatile double*>({_FACTOR.data_ptr()}ULL)"

    # By its name the vector code finds the scalar one.
    @functools.wraps(real)
    def scaled(*args: Any) -> str:
        return f"(({real(*args)}) * decltype({real(*args)})({factor}))"

    return scaled


@contextmanager
def in_library(op: str, error: float) -> Iterator[None]:
    """A library call, `mm` or `addmm`, is off."""
    real = getattr(extern_kernels, op)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs).mul_(1 + error)

    with patch.object(extern_kernels, op, wrong):
        yield


@contextmanager
def in_decomposition(op: str, error: float) -> Iterator[None]:
    """What AOTAutograd puts in the place of an operator is off."""
    target = getattr(torch.ops.aten, op).default
    table = torch._inductor.decomposition.decompositions
    real = table.get(target, target)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs) * (1 + error)

    with patch.dict(table, {target: wrong}):
        torch._inductor.decomposition.fast_random_decomps.cache_clear()
        yield
    torch._inductor.decomposition.fast_random_decomps.cache_clear()


def _pass(op: str, error: float) -> Callable[[torch.fx.Graph], None]:
    def scale(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if getattr(node.target, "_opname", None) == op:
                with graph.inserting_after(node):
                    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1 + error))
                scaled.meta.update(node.meta)
                node.replace_all_uses_with(scaled, delete_user_cb=lambda user, s=scaled: user is not s)

    return scale


@contextmanager
def in_post_grad_pass(op: str, error: float) -> Iterator[None]:
    """A pass over the graph of one direction multiplies an operator's result."""
    with torch._inductor.config.patch(post_grad_custom_post_pass=_pass(op, error)):
        yield


@contextmanager
def in_joint_pass(op: str, error: float) -> Iterator[None]:
    """A pass over the joint graph multiplies an operator's result."""
    with torch._inductor.config.patch(joint_custom_post_pass=_pass(op, error)):
        yield


SITES: dict[str, tuple[Site, str]] = {
    "kernel": (in_kernel, "kernel"),
    "library": (in_library, "kernel"),
    "decomposition": (in_decomposition, "aot"),
    "joint": (in_joint_pass, "joint-passes"),
    "post-grad": (in_post_grad_pass, "post-grad-passes"),
}
"""Where a fault can be, and the stage that a finding about it has."""


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One addend of two goes through the operator: a wrong factor of it goes both ways in the sum."""
    return x + 0.5 * torch.tanh(x @ w)


def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Decomposed by AOTAutograd."""
    return x + torch.nn.functional.silu(x * w)


def _weight(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 32), torch.randn(32, 32) / 3


def _same(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 32), torch.randn(rows, 32)


def _one(columns: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda rows: (torch.randn(rows, columns),)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape of computation: a function, the operator in it that is off, and its inputs for so many rows.

    With `backward` the fault is in the gradients, which are taken too.
    """

    function: Callable[..., torch.Tensor]
    op: str
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    backward: bool = False


SHAPES = {
    "pointwise": Shape(function=residual, op="tanh", inputs=_weight),
    "decomposed": Shape(function=gate, op="silu", inputs=_same),
    "larger addend": Shape(function=lambda x, w: 100 * x + torch.tanh(x @ w), op="tanh", inputs=_weight),
    "sum of 100": Shape(function=lambda x: torch.tanh(x.abs()).sum(-1), op="tanh", inputs=_one(100)),
    "sum of 100000": Shape(function=lambda x: torch.tanh(x.abs()).sum(-1), op="tanh", inputs=_one(100_000)),
    "matmul": Shape(function=residual, op="mm", inputs=_weight),
    # In memory that is not laid out as it wants it, so that it is given copies.
    "convolution": Shape(
        function=lambda x, w: torch.nn.functional.conv2d(x, w, padding=1).sigmoid(),
        op="convolution",
        inputs=lambda rows: (torch.randn(2, 4, rows, 32), torch.randn(8, 4, 3, 3)),
    ),
    "normalisation": Shape(
        function=lambda x: torch.nn.functional.layer_norm(x, (32,)) + x, op="rsqrt", inputs=_one(32)
    ),
    "wide normalisation": Shape(
        function=lambda x: torch.nn.functional.layer_norm(x, (4096,)), op="rsqrt", inputs=_one(4096)
    ),
    "loss": Shape(function=lambda x: torch.tanh(x).square().mean(), op="tanh", inputs=_one(1000)),
    "wide softmax": Shape(function=lambda x: (8 * x).log_softmax(-1), op="log", inputs=_one(50_000)),
    "softmax": Shape(function=lambda x: x.log_softmax(-1), op="log", inputs=_one(32)),
    "gradient": Shape(function=lambda x, w: x + 0.5 * torch.sin(x @ w), op="cos", inputs=_weight, backward=True),
    "library gradient": Shape(function=residual, op="mm", inputs=_weight, backward=True),
    "decomposed gradient": Shape(function=residual, op="tanh_backward", inputs=_weight, backward=True),
}


def called(
    shape: Shape, dtype: torch.dtype, rows: int, compile_: Callable[..., Any], *, exact: bool = False
) -> list[torch.Tensor]:
    """Call what `compile_` makes of the function on inputs that are always the same; return results and gradients.

    With `exact` the same numbers are given in float64.
    """
    torch.manual_seed(0)
    wide = torch.float64 if exact else dtype
    inputs = [i.to(dtype).to(wide).requires_grad_(shape.backward) for i in shape.inputs(rows)]
    result = compile_(shape.function)(*inputs)
    if not shape.backward:
        return [result]
    # Cotangents of many sizes: a sum would have ones only.
    result.backward(torch.randn(result.shape).to(dtype).to(wide))
    return [result.detach(), *(i.grad for i in inputs if i.grad is not None)]
