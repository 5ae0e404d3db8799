"""What kind of thing an FX node calls, and how to run operators without the user's modes seeing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["is_higher_order", "outside_modes", "undisturbed"]


def is_higher_order(target: Any) -> bool:
    """Whether `target` is an operator that takes functions, such as `cond`."""
    from torch._ops import HigherOrderOperator

    return isinstance(target, HigherOrderOperator)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run torchsan's own arithmetic unseen: no autograd, no autocast, no dispatch or function mode of the user's."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        enabled = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
        for device in enabled:
            torch.set_autocast_enabled(device, False)
        try:
            yield
        finally:
            for device in enabled:
                torch.set_autocast_enabled(device, True)


@contextmanager
def outside_modes() -> Iterator[None]:
    """Run a graph again unseen by the user's modes; autograd and autocast are left as they are."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield
