"""Tensors as bytes between the process that judges and the one that runs the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchsan.kernels.arena import Block


@dataclass(frozen=True, slots=True)
class Wire:
    """One argument: a tensor whose bytes follow, one that an earlier argument is, or a number (in a list)."""

    size: list[int]
    stride: list[int]
    lead: int
    dtype: str
    grad: bool = False
    same: int | None = None
    number: list[Any] | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found


def pack(t: torch.Tensor, blobs: list[bytes]) -> Wire:
    """Describe a tensor, and append its bytes: all from the first element to the last, gaps included."""
    t = t.detach()
    t = t.resolve_conj().resolve_neg()
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    blobs.append(t.as_strided((span,), (1,)).view(torch.uint8).numpy().tobytes() if span else b"")
    lead = min(int(t.storage_offset()), 64)
    dtype = str(t.dtype).removeprefix("torch.")
    return Wire(list(t.shape), list(t.stride()), lead, dtype, grad=t.requires_grad)


def unpack(wire: Wire, blob: bytes) -> torch.Tensor:
    """The tensor that `pack` described; a copy of its own."""
    if not blob:
        return torch.empty_strided(wire.size, wire.stride, dtype=wire.torch_dtype)
    flat = torch.frombuffer(bytearray(blob), dtype=wire.torch_dtype)
    return flat.as_strided(wire.size, wire.stride)


def unpack_into(t: torch.Tensor, block: Block | None, blob: bytes) -> None:
    """Put the bytes into a tensor that is there already, without the program of the kernel noticing."""
    if block is not None and blob:
        content = block.bytes()
        content[len(content) - len(blob) :] = torch.frombuffer(bytearray(blob), dtype=torch.uint8).numpy()
