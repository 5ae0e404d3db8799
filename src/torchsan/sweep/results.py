"""What came of programs, one record each, in a database on disk. Importing it imports no torch.

A result has its program's address. What is written is committed at once: whatever ends a sweep, nothing is lost.
"""

from __future__ import annotations

import json
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from torchsan.errors import RecordingError, UsageError
from torchsan.recording.folder import loads_strictly
from torchsan.records import Finding, decode, encode
from torchsan.sweep.programs import Program

DATABASE = "results.sqlite"
PLACE = "torchsan-sweeps"
"""Where sweeps without `--out` go, below the current folder."""


_TABLES = {
    "results": "CREATE TABLE results (address TEXT PRIMARY KEY, body TEXT)",
    "about": "CREATE TABLE about (name TEXT PRIMARY KEY, body TEXT)",
}


class Outcome(StrEnum):
    """How one program ended."""

    CLEAN = "clean"
    FINDINGS = "findings"
    """There are findings of severity `error`, however it ended."""
    FAILED = "failed"
    """It raises when it is compiled, and not eagerly."""
    CRASHED = "crashed"
    """It dies of a signal."""
    HUNG = "hung"
    """It does not end in time."""
    OUT_OF_MEMORY = "out-of-memory"
    """It needs more than the limit when it is compiled, and not eagerly."""
    INVALID = "invalid"
    """It raises, or needs too much, eagerly as well: nothing is judged."""
    INCOMPLETE = "incomplete"
    """It ran, and not all of it was judged: nothing was compiled, say."""


BROKEN = frozenset([Outcome.FAILED, Outcome.CRASHED, Outcome.HUNG, Outcome.OUT_OF_MEMORY])
"""What is a find by itself, without a finding."""
JUDGED = frozenset([Outcome.CLEAN, Outcome.FINDINGS]) | BROKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one program. `covers` is what its compile reached, `reasons` why it is incomplete or broken.

    `eagerly`: it crashes or hangs eagerly, too. `signal` is the one that it died of; `output` the end of what it
    printed, if it is broken or invalid.
    """

    address: str
    program: Program
    outcome: Outcome
    seconds: float
    findings: tuple[Finding, ...] = ()
    covers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    eagerly: bool = False
    signal: int | None = None
    output: str = ""
    graphs: int = 0
    kernels: int = 0
    buffers: int = 0
    buffers_checked: int = 0


class Results:
    """The results of one sweep, in the folder `path`."""

    def __init__(self, path: Path) -> None:
        """Open or create the database. Raise UsageError if that cannot be."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_plain(path)
            self._connection = sqlite3.connect(path / DATABASE, isolation_level=None)
            _check_tables(self._connection)
            self._connection.execute("PRAGMA journal_mode=WAL")
            for text in _TABLES.values():
                self._connection.execute(text.replace("TABLE", "TABLE IF NOT EXISTS", 1))
        except (OSError, sqlite3.Error) as e:
            raise UsageError(f"cannot keep results in {path}: {e}; choose another --out", slug="unwritable-out") from e

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def add(self, result: Result) -> None:
        """Keep a result."""
        body = json.dumps(encode(result))
        self._connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (result.address, body))

    def get(self, address: str) -> Result | None:
        """Return the result of an address, if there is one."""
        for (body,) in self._connection.execute("SELECT body FROM results WHERE address = ?", (address,)):
            return self._result(address, body)
        return None

    def __iter__(self) -> Iterator[Result]:
        for address, body in self._connection.execute("SELECT address, body FROM results ORDER BY rowid").fetchall():
            yield self._result(address, body)

    def _result(self, address: Any, body: Any) -> Result:
        try:
            result = decode(Result, loads_strictly(body))
        except (RecordingError, ValueError, TypeError) as e:
            raise self._damaged(f"the result {address!r:.40} is no result") from e
        if result.address != address:
            raise self._damaged(f"the result {address!r:.40} is that of another program")
        return result

    def _damaged(self, what: str) -> UsageError:
        return UsageError(f"the results in {self.path} are damaged: {what}; sweep into another --out", slug="usage")

    def note(self, name: str, value: Any) -> None:
        """Keep a JSON value about the sweep."""
        self._connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, json.dumps(value)))

    def noted(self, name: str) -> Any:
        """Return a value that was noted; None if there is none."""
        for (body,) in self._connection.execute("SELECT body FROM about WHERE name = ?", (name,)):
            try:
                return loads_strictly(body)
            except (RecordingError, ValueError, TypeError) as e:
                raise self._damaged(f"what is said of {name} is no JSON") from e
        return None


def _check_plain(path: Path) -> None:
    """Raise OSError if a file of the database is there and is no plain file of its own, but leads elsewhere."""
    for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
        with suppress(FileNotFoundError):
            status = (path / name).lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise OSError(f"{name} is no plain file of its own")


def _check_tables(connection: sqlite3.Connection) -> None:
    """Raise OSError if there is anything but the two tables: a view in the place of one computes when it is asked."""
    connection.execute("PRAGMA trusted_schema=OFF")
    for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        ours = kind == "table" and text == _TABLES.get(name)
        if not ours and not (kind == "index" and text is None):
            raise OSError(f"{DATABASE} holds the {kind} {name!r:.40}, which is none of a sweep's")


def place_for(out: Path | None, *, resume: bool) -> Path:
    """Return the folder for the results. Raise UsageError if it holds others, and they are not to be resumed.

    To resume without `out` is to go on in the newest folder of PLACE, if there is one.
    """
    if out is not None:
        if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} is not empty; --resume goes on with what is there, --out names another folder",
                slug="out-exists",
            )
        return out
    with suppress(OSError):
        earlier = sorted(folder for folder in Path(PLACE).iterdir() if (folder / DATABASE).is_file())
        if resume and earlier:
            return earlier[-1]
    name = time.strftime("%Y-%m-%d-%H%M%S")
    folder, n = Path(PLACE, name), 1
    while folder.exists():
        n += 1
        folder = Path(PLACE, f"{name}-{n}")
    return folder
