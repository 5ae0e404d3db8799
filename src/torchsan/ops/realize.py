"""`torch.ops.torchsan.realize` and `probe`: a place in a graph where a value exists in memory, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsan.torch_internals.operators import transforms_active

_listener: Callable[[str, torch.Tensor], None] | None = None
"""Who is told what passes a probe. Set while a session watches; None otherwise, and then a probe does nothing."""


@torch.library.custom_op("torchsan::realize", mutates_args=())
def _realize(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@_realize.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@_realize.register_vmap
def _(info: Any, in_dims: tuple[int | None], x: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    return _realize(x), in_dims[0]


@torch.library.custom_op("torchsan::probe", mutates_args=())
def _probe(x: torch.Tensor, name: str) -> torch.Tensor:
    if _listener is not None:
        _listener(name, x)
    return x.clone()


@_probe.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


@_probe.register_vmap
def _(info: Any, in_dims: tuple[int | None, None], x: torch.Tensor, name: str) -> tuple[torch.Tensor, int | None]:
    return torch.ops.torchsan.probe(x, name), in_dims[0]


class _Boundary(torch.autograd.Function):
    """Both operators for `torch.func`, whose transforms a custom operator's own backward does not take part in."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, name: str | None) -> torch.Tensor:
        result: torch.Tensor = _realize(x) if name is None else _probe(x, name)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, str | None], output: torch.Tensor) -> None:
        ctx.name = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _boundary(grad, None if ctx.name is None else f"{ctx.name}.grad"), None


def _boundary(x: torch.Tensor, name: str | None) -> torch.Tensor:
    # Where both work, the operator alone: tracing an autograd.Function makes Dynamo warn of itself.
    if torch.compiler.is_compiling() and not transforms_active():
        return _Boundary.forward(x, name)
    result: torch.Tensor = _Boundary.apply(x, name)  # type: ignore[no-untyped-call]  # torch has no type for it
    return result


_realize.register_autograd(lambda ctx, grad: realize(grad))
_probe.register_autograd(lambda ctx, grad: _Boundary.backward(ctx, grad), setup_context=_Boundary.setup_context)


def realize(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as a fresh tensor that is really there: no compiled kernel computes across this point.

    The same holds for its gradient. Costs one copy.

    >>> import torch, torchsan
    >>> torchsan.realize(torch.arange(3))
    tensor([0, 1, 2])
    """
    return _boundary(x, None)


def probe(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return `x`, and show it as `name`, and its gradient as `name.grad`, to a session that watches.

    Inside such a session it is a boundary like `realize`; otherwise it is nothing at all, and `x` itself comes back.

    >>> import torch, torchsan
    >>> x = torch.ones(3)
    >>> torchsan.probe(x, "after-attention") is x
    True
    """
    return x if _listener is None else _boundary(x, name)
