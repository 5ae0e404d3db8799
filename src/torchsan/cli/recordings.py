"""Opens the recording that a command is given: a folder, a URL, or the folder that a package wrote to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchsan.packages.convert import as_recording
from torchsan.recording import Reader, is_url, local_copy

__all__ = ["opened"]


@contextmanager
def opened(path: str) -> Iterator[Reader]:
    """Give the recording at `path`, for as long as the context lasts; raise RecordingError if there is none."""
    with local_copy(path) as folder:
        recording = Reader(as_recording(folder))
        recording.place = path if is_url(path) else None
        yield recording
