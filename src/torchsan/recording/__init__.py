"""One run on disk: a folder with a manifest, an SQLite event log, text artifacts and a place for tensors.

The event log is the truth. It is written as things happen, one commit each, so that a killed process loses nothing it
had seen; reading it needs neither the program nor torch, and executes nothing from it.
"""

from __future__ import annotations

from torchsan.recording.folder import (
    SCHEMA,
    Manifest,
    Rank,
    create_folder,
    current_rank,
    is_url,
    join_url,
    rank_folders,
)
from torchsan.recording.reader import Failure, Reader, Timed
from torchsan.recording.recorder import Program, Recorder, Writer, finalize
from torchsan.recording.shipping import Shipper, local_copy

__all__ = [
    "SCHEMA",
    "Failure",
    "Manifest",
    "Program",
    "Rank",
    "Reader",
    "Recorder",
    "Shipper",
    "Timed",
    "Writer",
    "create_folder",
    "current_rank",
    "finalize",
    "is_url",
    "join_url",
    "local_copy",
    "rank_folders",
]
