"""A content-addressed store of tensors, in a local folder or behind any fsspec URL."""

from __future__ import annotations

from torchsan.store.store import Store
from torchsan.store.upkeep import FsckReport, GcReport, Problem

__all__ = ["FsckReport", "GcReport", "Problem", "Store"]
