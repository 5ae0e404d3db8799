"""What came of programs, one record each, in a database on disk. Importing it imports no torch.

A result has its program's address. What is written is committed at once: whatever ends a sweep, nothing is lost.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from torchsan.errors import UsageError
from torchsan.recording.folder import loads_strictly
from torchsan.records import Finding, decode, encode
from torchsan.sweep.programs import Program

DATABASE = "results.sqlite"
PLACE = "torchsan-sweeps"
"""Where sweeps without `--out` go, below the current folder."""


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
            self._connection = sqlite3.connect(path / DATABASE, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS results (address TEXT PRIMARY KEY, body TEXT)")
            self._connection.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, body TEXT)")
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
            return decode(Result, loads_strictly(body))
        return None

    def __iter__(self) -> Iterator[Result]:
        for (body,) in self._connection.execute("SELECT body FROM results ORDER BY rowid").fetchall():
            yield decode(Result, loads_strictly(body))

    def note(self, name: str, value: Any) -> None:
        """Keep a JSON value about the sweep."""
        self._connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, json.dumps(value)))

    def noted(self, name: str) -> Any:
        """Return a value that was noted; None if there is none."""
        for (body,) in self._connection.execute("SELECT body FROM about WHERE name = ?", (name,)):
            return loads_strictly(body)
        return None


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
