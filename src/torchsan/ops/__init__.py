"""Operators for graphs: importing this package registers them under `torch.ops.torchsan`."""

from torchsan.ops.load_tensor import load_tensor, loading_from
from torchsan.ops.probe import probe
from torchsan.ops.realize import realize

__all__ = ["load_tensor", "loading_from", "probe", "realize"]
