"""Programs that a capture has to see through: operators that take functions, graph breaks, generators, transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def _compiled(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> Any:
    return torch.compile(function, **options)(*inputs)


def _x(*, grad: bool = False) -> Tensor:
    return torch.randn(8, 8).requires_grad_(grad)


def _cond() -> None:
    def choose(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,))

    function = torch.compile(choose)
    function(_x().abs())
    function(-_x().abs())


def _cond_that_writes() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        y.add_(x)
        return x.sin()

    def subtract(x: Tensor, y: Tensor) -> Tensor:
        y.sub_(x)
        return x.cos()

    with torch.no_grad():
        _compiled(lambda x, y: torch.cond(x.sum() > 0, add, subtract, (x, y)), _x(), _x())


def _cond_in_training() -> None:
    x = _x(grad=True)
    _compiled(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (x,)), x).sum().backward()


def _while_loop() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def loop(x: Tensor) -> Any:
        return while_loop(lambda i, _x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))

    _compiled(loop, _x())


def _associative_scan() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    _compiled(lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), _x())


def _flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with torch.no_grad():
        q = torch.randn(1, 2, 128, 16)
        _compiled(lambda q: flex_attention(q, q, q, score_mod=lambda s, _b, _h, i, j: s + i - j), q)


def _checkpointed(dropout: float) -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 8))
    _compiled(lambda x: checkpoint(block, x, use_reentrant=False).sum(), _x(grad=True)).backward()


def _nested_region() -> None:
    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return x.sin() + 1

    _compiled(lambda x: region(region(x)), _x(grad=True)).sum().backward()


class Square(torch.autograd.Function):
    """With a backward of its own, which is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


@torch.library.custom_op("captures::fill", mutates_args={"y"})
def fill(x: Tensor, y: Tensor) -> None:
    """Write one argument from the other."""
    y.copy_(x.sin())


def _operator_that_writes() -> None:
    def both(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        fill(x, y)
        fill(y, x)
        return y + x

    _compiled(both, _x())


def _generator() -> None:
    def parts(x: Tensor) -> Iterator[Tensor]:
        for i in range(3):
            yield x * i

    _compiled(lambda x: sum(parts(x)), _x())


def _graph_breaks() -> None:
    def broken(x: Tensor) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        y = y + x.tolist()[0][0]
        torch._dynamo.graph_break()
        return y.cos() * 2

    x = _x(grad=True)
    _compiled(broken, x).sum().backward()


def _static_cache() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval()
    model.forward = torch.compile(model.forward)
    prompt = torch.randint(0, 64, (1, 4))
    model.generate(prompt, max_new_tokens=12, do_sample=False, cache_implementation="static")


def _cubes(x: Tensor) -> Tensor:
    return (x**3).sum()


def _row(row: Tensor) -> Tensor:
    return row.cumsum(0) * row.max()


CAPTURES: dict[str, Callable[[], None]] = {
    "cond": _cond,
    "cond_that_writes": _cond_that_writes,
    "cond_in_training": _cond_in_training,
    "while_loop": _while_loop,
    "associative_scan": _associative_scan,
    "flex_attention": _flex_attention,
    "checkpointing": lambda: _checkpointed(0.0),
    "checkpointing_with_dropout": lambda: _checkpointed(0.5),
    "nested_region": _nested_region,
    "autograd_function": lambda: _compiled(lambda x: Square.apply(x).sum(), _x(grad=True)).backward(),
    "operator_that_writes": _operator_that_writes,
    "generator": _generator,
    "graph_breaks": _graph_breaks,
    "gradient": lambda: _compiled(torch.func.grad(_cubes), _x()),
    "vmap": lambda: _compiled(torch.func.vmap(_row), _x()),
    "jvp": lambda: _compiled(lambda x: torch.func.jvp(torch.sin, (x,), (x,)), _x()),
    "hessian": lambda: _compiled(torch.func.hessian(_cubes), torch.randn(4)),
    "static_cache": _static_cache,
}
