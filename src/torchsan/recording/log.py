"""The event log: one SQLite table that a killed process leaves readable, with views for people who query it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from torchsan.errors import RecordingError
from torchsan.recording.folder import EVENTS

MAX_BODY = 128 * 2**20
"""The largest event in bytes: a recording that claims more is not ours, or damaged."""

_TABLES = """
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, time REAL, thread INTEGER, kind TEXT, body TEXT);
CREATE VIEW IF NOT EXISTS findings AS
  SELECT body->>'$.id' AS id, body->>'$.severity' AS severity, body->>'$.kind' AS kind, body->>'$."check"' AS "check",
         body->>'$.graph.id' AS graph, body->>'$.graph.direction' AS direction, body->>'$.kernel' AS kernel,
         body->>'$.buffer' AS buffer, body->>'$.message' AS message, time
  FROM events WHERE kind = 'finding' ORDER BY events.id;
CREATE VIEW IF NOT EXISTS kernels AS
  SELECT body->>'$.id' AS graph, body->>'$.direction' AS direction, k.value->>'$.nth' AS nth,
         k.value->>'$.name' AS name, k.value->>'$.kind' AS kind, k.value->'$.ops' AS ops, k.value->'$.reads' AS reads,
         k.value->'$.writes' AS writes, k.value->>'$.source[0].file' AS file, k.value->>'$.source[0].line' AS line
  FROM events, json_each(body, '$.kernels') AS k WHERE events.kind = 'graph' ORDER BY events.id, k.key;
CREATE VIEW IF NOT EXISTS skipped AS
  SELECT body->>'$.what' AS what, body->>'$.reason' AS reason, time
  FROM events WHERE kind = 'skipped' ORDER BY events.id;
"""


def connect(folder: Path) -> sqlite3.Connection:
    """Open the log for writing, and make it if there is none.

    In WAL mode a commit is a write to a file, which survives the process; `synchronous=NORMAL` gives up only the last
    events before a power cut, and makes an event cost microseconds. Every statement commits by itself.
    """
    connection = sqlite3.connect(folder / EVENTS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def insert(connection: sqlite3.Connection, time: float, thread: int, kind: str, body: str) -> None:
    """Append one event; it is on its way to the disk when this returns."""
    if len(body) > MAX_BODY:
        raise ValueError(f"an event of {len(body)} bytes is more than a recording takes")
    connection.execute("INSERT INTO events (time, thread, kind, body) VALUES (?, ?, ?, ?)", (time, thread, kind, body))


def make_single_file(connection: sqlite3.Connection) -> None:
    """Fold the write-ahead log into the database, so that one file can be copied; leave it if someone is reading."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")


class ReadOnlyLog:
    """An event log opened to be read: nothing is written to the recording, and nothing in it is executed."""

    def __init__(self, folder: Path) -> None:
        """Open the log of a finished, a running or a killed run; raise RecordingError if it is none."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        file = folder / EVENTS
        for part in _parts(file):
            if not stat.S_ISREG(part.lstat().st_mode):
                raise RecordingError(f"{part} is not a plain file; the recording is damaged", slug="no-recording")
        if not file.exists():
            raise RecordingError(f"no {EVENTS} in {folder}; the recording is damaged", slug="no-recording")
        try:
            self._connection = _open_read_only(file)
        except sqlite3.Error:
            self._connection = self._open_copy(file)

    def _open_copy(self, file: Path) -> sqlite3.Connection:
        """A killed run leaves a write-ahead log, and SQLite needs a writable folder to read one: so read a copy."""
        self._temporary = tempfile.TemporaryDirectory(prefix="torchsan-")
        try:
            for part in _parts(file):
                shutil.copyfile(part, Path(self._temporary.name, part.name))
            return _open_read_only(Path(self._temporary.name, file.name))
        except (OSError, sqlite3.Error) as e:
            self._temporary.cleanup()
            raise RecordingError(
                f"cannot read {file}: {e}; the recording is damaged or was not written by torchsan", slug="no-recording"
            ) from e

    def events(self) -> list[tuple[object, object, object, object]]:
        """Return (time, thread, kind, body) of every event in the order they happened, of whatever types they are."""
        try:
            return list(self._connection.execute("SELECT time, thread, kind, body FROM events ORDER BY id"))
        except (sqlite3.Error, OverflowError) as e:
            raise RecordingError(
                f"cannot read the events: {e}; the recording is damaged", slug="malformed-record"
            ) from e

    def close(self) -> None:
        """Let go of the files."""
        self._connection.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _parts(file: Path) -> list[Path]:
    wal = file.with_name(file.name + "-wal")
    return [part for part in (file, wal) if os.path.lexists(part)]


def _open_read_only(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        # The schema of a stranger's database can call functions from views and triggers; a table cannot.
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA cell_size_check=ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BODY + 1024)
        kind = connection.execute("SELECT type FROM sqlite_master WHERE name = 'events'").fetchone()
        if kind != ("table",):
            raise sqlite3.DatabaseError("it has no table of events")
    except BaseException:
        connection.close()
        raise
    return connection
