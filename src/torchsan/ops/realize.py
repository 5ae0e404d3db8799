"""`torch.ops.torchsan.realize`: a place in a graph where a value exists in memory, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["realize"]


@torch.library.custom_op("torchsan::realize", mutates_args=())
def _realize(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@_realize.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@_realize.register_vmap
def _(info: Any, in_dims: tuple[int | None], x: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    return _realize(x), in_dims[0]


def _backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return realize(grad)


_realize.register_autograd(_backward)


class _Realize(torch.autograd.Function):
    """The operator for `torch.func`, whose transforms a custom operator's own backward does not take part in."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _realize(x)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return realize(grad)


def realize(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as a fresh tensor that is really there: no compiled kernel computes across this point.

    The same holds for its gradient. Costs one copy.
    """
    # Where both work, the operator alone: tracing an autograd.Function makes Dynamo warn of itself.
    alone = torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    result: torch.Tensor = _realize(x) if alone else _Realize.apply(x)  # type: ignore[no-untyped-call]  # torch has no type for it
    return result
