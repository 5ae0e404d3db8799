"""Pure functions on tensors: describe, summarize, digest, compare."""

from __future__ import annotations

from torchsan.tensors.compare import compare, digest
from torchsan.tensors.describe import describe
from torchsan.tensors.summarize import summarize

__all__ = ["compare", "describe", "digest", "summarize"]
