"""A content-addressed store of tensors, in a local folder or behind any fsspec URL."""

from torchsan.store.collecting import GcReport
from torchsan.store.fsck import FsckReport, Problem
from torchsan.store.store import Store

__all__ = ["FsckReport", "GcReport", "Problem", "Store"]
