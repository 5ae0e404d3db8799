"""Says now and then, on a terminal, how far a running program has come."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from torchsan.recording.folder import EVENTS

_COUNT = "SELECT count(*), coalesce(sum(json_array_length(body, '$.kernels')), 0) FROM events WHERE kind = 'graph'"


class Progress:
    """Reads the log of a run that another process writes.

    Whole lines, few of them, and only when there is news: a line that is drawn anew would garble what the program
    prints to the same terminal.
    """

    def __init__(self, folder: Path, stream: TextIO, every: float = 2.0) -> None:
        """Report on the recording in `folder` to `stream`, at most one line in `every` seconds."""
        self._file = folder / EVENTS
        self._stream = stream
        self._every = every
        self._connection: sqlite3.Connection | None = None
        self._shown = (0, 0)
        self._next = 0.0

    def show(self) -> None:
        """Print a line if there is something new to say."""
        if time.monotonic() < self._next:
            return
        with suppress(sqlite3.Error, OSError):  # The log may not exist yet; and this is only a courtesy.
            if self._connection is None:
                self._connection = sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=0)
            graphs, kernels = self._connection.execute(_COUNT).fetchone()
            if (graphs, kernels) != self._shown:
                self._shown = (graphs, kernels)
                self._next = time.monotonic() + self._every
                self._stream.write(f"torchsan: graph {graphs}, {kernels} kernels so far\n")
                self._stream.flush()

    def close(self) -> None:
        """Let go of the log."""
        if self._connection is not None:
            self._connection.close()
