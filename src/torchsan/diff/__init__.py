"""Where two recordings of one program part: aligned by graph, node and call; rounding told from the rest."""

from __future__ import annotations

from torchsan.diff.compare import compare_recordings
from torchsan.diff.result import Diff, Judged, Status

__all__ = ["Diff", "Judged", "Status", "compare_recordings"]
