"""Whether a launch does the same twice from the same memory. Kernels that race, or count on what they find, do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsan.instruments.observer import Values
from torchsan.instruments.program import Launch
from torchsan.records import KernelKind

__all__ = ["Repetition", "other_bits"]


class Repetition:
    """Runs launches again. Only kernels that Inductor generated: libraries and operators may draw or communicate."""

    def __init__(self) -> None:
        self._found: dict[str, torch.Tensor] = {}

    def before(self, launch: Launch, values: Values) -> None:
        """Keep what the launch is going to overwrite."""
        self._found = {}
        if launch.kind is KernelKind.FUSED and launch.result is None:
            tensors = {name: values.get(name) for name in launch.writes}
            self._found = {n: _flat(t).clone() for n, t in tensors.items() if isinstance(t, torch.Tensor) and t.numel()}

    def differences(self, values: Values, again: Callable[[], Any]) -> dict[str, torch.Tensor]:
        """Launch `again` from the same memory; return what came out otherwise, by variable. `values` stay the same."""
        found, self._found = self._found, {}
        if not found:
            return {}
        memory = {name: _flat(values[name]) for name in found}
        first = {name: flat.clone() for name, flat in memory.items()}
        try:
            for name, flat in memory.items():
                flat.copy_(found[name])
            again()
            return {
                name: values[name].clone(memory_format=torch.preserve_format)
                for name, flat in memory.items()
                if bool(other_bits(flat, first[name]).any())
            }
        finally:
            for name, flat in memory.items():
                flat.copy_(first[name])


def other_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape and dtype differ, bit for bit: a NaN equals itself, and 0.0 is not -0.0."""
    width = one.element_size()
    rows = [t.contiguous().view(-1).view(torch.uint8).view(-1, width) for t in (one, other)]
    return (rows[0] != rows[1]).any(1).view(one.shape)


def _flat(t: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, gaps included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.detach().as_strided((span,), (1,), t.storage_offset())
