"""From a graph of Dynamo's, with functions and methods of all kinds, to one of operators with names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.fx

__all__ = ["trace_operators"]


def trace_operators(function: Callable[..., Any], args: list[Any]) -> torch.fx.GraphModule:
    """Run the function on these arguments and return the operators that it called, before autograd takes them apart.

    Mutations stay as they are; the arguments are changed as the function changes them.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, pre_dispatch=True, tracing_mode="real", _allow_non_fake_inputs=True)(*args)
