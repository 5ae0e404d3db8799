"""Whether a mutation was the operator's own doing, where other threads may have written to the same memory."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsan.checks.metadata.bits import bits
from torchsan.checks.metadata.schema import inputs
from torchsan.torch_internals.operators import undisturbed

__all__ = ["confirmed"]


def confirmed(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Run the operator once more, on copies that only it can reach; True if it writes to those as well.

    True without another run where no other thread runs, and where another run fails.
    """
    if threading.active_count() == 1:
        return True
    if not all(i.tensor.is_floating_point() for i in inputs(overload, args, kwargs) if not i.written):
        return True  # Other integers may be no valid input.
    return any(_writes(overload, args, kwargs, copy) for copy in (_copy, _other))


def _writes(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], copy: Any) -> bool:
    with undisturbed(), torch.random.fork_rng(devices=[]):
        copies_args, copies_kwargs = pytree.tree_map_only(torch.Tensor, copy, (args, kwargs))
        private = [i for i in inputs(overload, copies_args, copies_kwargs) if not i.written]
        before = [bits(i.tensor) for i in private]
        try:
            overload(*copies_args, **copies_kwargs)
        except Exception:  # noqa: BLE001  # an operator that fails on a copy is beyond judging; the first run stands
            return True
        return before != [bits(i.tensor) for i in private]


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone(memory_format=torch.preserve_format)


def _other(t: torch.Tensor) -> torch.Tensor:
    """Other values: what was written once may not show when it is written again."""
    return _copy(t).nan_to_num_().add_(1) if t.is_floating_point() else _copy(t)
