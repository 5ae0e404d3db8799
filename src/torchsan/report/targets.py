"""Files that reports are written to: checked before a long run, and then written at once or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torchsan.errors import UsageError
from torchsan.recording.folder import write_atomically

__all__ = ["check_target", "write_target"]


def check_target(option: str, target: str) -> None:
    """Raise UsageError if a report cannot be written there, before a long run finds out; `-` is standard output."""
    if target == "-":
        return
    folder = Path(os.path.realpath(target)).parent
    if Path(target).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"cannot write {option} {target}: {folder} is not a folder one can write to", slug="bad-target"
        )


def write_target(option: str, target: str, text: str) -> None:
    """Write a report to a file, at once or not at all, or to standard output for `-`."""
    if target == "-":
        sys.stdout.write(text)
        return
    file = Path(os.path.realpath(target))
    try:
        if file.exists() and not file.is_file():
            file.write_text(text, encoding="utf-8")  # A device or a pipe must be written to, not replaced.
        else:
            write_atomically(file, text)
    except OSError as e:
        raise UsageError(f"cannot write {option} {target}: {e.strerror or e}", slug="bad-target") from e
