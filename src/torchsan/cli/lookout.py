"""Looks at the log of a program that still runs: to say how far it has come, and to act on its first error."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from torchsan.recording.folder import EVENTS

_COUNT = "SELECT count(*), coalesce(sum(json_array_length(body, '$.kernels')), 0) FROM events WHERE kind = 'graph'"
_ERRORS = """SELECT coalesce(max(id), :seen), total(kind = 'finding' AND body->>'$.severity' = 'error')
             FROM events WHERE id > :seen"""
_EVERY = 2.0


class Lookout:
    """Reads the log of a run that another process writes.

    To `stream` go whole lines, at most one in two seconds, and only when there is news: a line that is drawn anew would
    garble what the program prints to the same terminal. `on_error` is called once.
    """

    def __init__(self, folder: Path, *, stream: TextIO | None, on_error: Callable[[], None] | None) -> None:
        self._file = folder / EVENTS
        self._stream = stream
        self._on_error = on_error
        self._connection: sqlite3.Connection | None = None
        self._shown = (0, 0)
        self._next = 0.0
        self._seen = 0

    def look(self) -> None:
        """See what is new."""
        with suppress(sqlite3.Error, OSError):  # The log may not exist yet; and this is only a courtesy.
            if self._stream is not None and time.monotonic() >= self._next:
                self._show(self._stream)
            if self._on_error is not None:
                self._seen, errors = self._row(_ERRORS, seen=self._seen)
                if errors:
                    act, self._on_error = self._on_error, None  # Once, also if it fails.
                    act()

    def close(self) -> None:
        """Let go of the log."""
        if self._connection is not None:
            self._connection.close()

    def _show(self, stream: TextIO) -> None:
        graphs, kernels = self._row(_COUNT)
        if (graphs, kernels) != self._shown:
            self._shown = (graphs, kernels)
            self._next = time.monotonic() + _EVERY
            stream.write(f"torchsan: graph {graphs}, {kernels} kernels so far\n")
            stream.flush()

    def _row(self, query: str, **values: int) -> tuple[Any, ...]:
        if self._connection is None:
            self._connection = sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=0)
        row: tuple[Any, ...] = self._connection.execute(query, values).fetchone()
        return row
