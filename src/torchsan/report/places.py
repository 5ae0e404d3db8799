"""Paths as people type them."""

from __future__ import annotations

from pathlib import Path

from torchsan.recording import Reader

__all__ = ["shown_path", "shown_place"]


def shown_path(path: Path) -> str:
    """Return a path from the current folder on if it lies below that, else the whole of it."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def shown_place(recording: Reader) -> str:
    """Return the path of a recording, or its URL."""
    return recording.place or shown_path(recording.path)
