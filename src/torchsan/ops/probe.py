"""`torch.ops.torchsan.probe`: a value with a name, seen by whoever watches, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["probe"]

_listener: Callable[[str, torch.Tensor], None] | None = None
"""Who is told what passes a probe. Set while a session watches; None otherwise, and then a probe does nothing."""


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


def _setup(ctx: Any, inputs: tuple[torch.Tensor, str], output: torch.Tensor) -> None:
    ctx.name = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.ops.torchsan.probe(grad, f"{ctx.name}.grad"), None


_probe.register_autograd(_backward, setup_context=_setup)


def probe(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return `x`, and show it as `name`, and its gradient as `name.grad`, to a session that watches.

    Inside such a session it is a boundary like `realize`; otherwise it is nothing at all, and `x` itself comes back.
    """
    if _listener is None:
        return x
    result: torch.Tensor = torch.ops.torchsan.probe(x, name)
    return result
