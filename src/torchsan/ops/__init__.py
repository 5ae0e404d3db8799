"""Operators for graphs: importing this package registers them under `torch.ops.torchsan`."""

from torchsan.ops.insert_memory_steps import insert_memory_steps
from torchsan.ops.load_tensor import load_tensor, loading_from
from torchsan.ops.memory_step import memory_step, memory_steps
from torchsan.ops.probe import probe
from torchsan.ops.realize import realize

__all__ = [
    "insert_memory_steps",
    "load_tensor",
    "loading_from",
    "memory_step",
    "memory_steps",
    "probe",
    "realize",
]
