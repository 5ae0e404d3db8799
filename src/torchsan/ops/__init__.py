"""Operators for graphs: importing this package registers them under `torch.ops.torchsan`."""

from __future__ import annotations

from torchsan.ops.load_tensor import load_tensor, loading_from
from torchsan.ops.memory_step import insert_memory_steps, memory_step, memory_steps
from torchsan.ops.realize import probe, realize

__all__ = ["insert_memory_steps", "load_tensor", "loading_from", "memory_step", "memory_steps", "probe", "realize"]
