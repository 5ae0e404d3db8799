"""The event log: one SQLite table that a killed process leaves readable, with views for people who query it."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import xxhash

from torchsan.errors import RecordingError
from torchsan.files import high_descriptors, identity, open_plain, unchanged
from torchsan.recording.folder import EVENTS

_log = logging.getLogger(__name__)

MAX_BODY = 128 * 2**20
"""The largest event in bytes: a recording that claims more is not ours, or damaged."""

_ROW, _LIST, _DICT, _VALUE = 400, 88, 200, 32
"""What an event, a list, a dictionary and what stands in them take in memory, in bytes."""
_DENSITY, _ALLOWANCE = 12, 64 * 2**20
"""What a log may take in memory: so many bytes for each of its own, and some more. Ours take four to eight."""

_EVENTS_TABLE = (
    "CREATE TABLE events (id INTEGER PRIMARY KEY, time REAL, thread INTEGER, kind TEXT, body TEXT, checksum INTEGER)"
)
_WITHOUT_CHECKSUMS = _EVENTS_TABLE.replace(", checksum INTEGER", "")
"""The table in recordings of schema 1."""
_TABLES = f"""
{_EVENTS_TABLE.replace("TABLE", "TABLE IF NOT EXISTS")};
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

_lost: set[tuple[int, int] | None] = set()
"""Device and inode of logs whose descriptors this process lost. SQLite shares descriptors among the connections of a
process to one file, so a new connection to such a log would use the lost ones."""


def connect(folder: Path) -> sqlite3.Connection:
    """Open the log for writing, and make it if there is none.

    In WAL mode a commit is a write to a file, which survives the process; `synchronous=NORMAL` gives up only the last
    events before a power cut, and makes an event cost microseconds. Every statement commits by itself.
    """
    if not (folder / EVENTS).exists():
        with suppress(OSError):  # SQLite says what is wrong with the place.
            (folder / EVENTS).touch()
    if identity(folder / EVENTS) in _lost - {None}:
        raise sqlite3.OperationalError("the program closed the descriptors of its log")
    connection = sqlite3.connect(folder / EVENTS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


class EventLog:
    """The log of a running program, open for appending. For one thread at a time.

    Each write first makes sure that SQLite's descriptors still lead to the log, and not to a file of the program, as
    `torchsan.files.identity` explains; if not, it goes on in a copy of the log. What is left is a window of
    microseconds, for another thread of the program that closes and opens between the look and the write.
    """

    def __init__(self, folder: Path) -> None:
        """Open the log in `folder`. Raise sqlite3.Error if that cannot be."""
        self._folder = folder
        self._open()

    def _open(self) -> None:
        before = set(_open_descriptors())
        with high_descriptors():
            self.connection = connect(self._folder)
        # The end of the interpreter would close it, lost descriptors or not, and closing writes. `close` undoes this.
        _keep_forever(self.connection)
        self._database = identity(self._folder / EVENTS)
        files = {identity(part) for part in _parts(self._folder / EVENTS, "", "-wal", "-shm")} - {None}
        self._descriptors = {n: i for n in set(_open_descriptors()) - before if (i := identity(n)) in files}

    def append(self, kind: str, body: str) -> None:
        """Append one event; it is on its way to the disk when this returns. Raise sqlite3.Error or OSError if not."""
        if not unchanged(self._descriptors):
            self._go_on_in_a_copy()
        insert(self.connection, threading.get_native_id(), kind, body)

    def roll(self, kinds: Iterable[str]) -> int:
        """Drop the older three quarters of the events of these kinds; return how many. The others count from 1 again.

        Whoever reads sees the log before or after it. What tells where a tensor is kept stays. Raise sqlite3.Error.
        """
        if not unchanged(self._descriptors):
            self._go_on_in_a_copy()
        names = ", ".join(f"'{kind}'" for kind in kinds)
        old = f"kind IN ({names}) AND body->>'$.watched.stored' IS NULL"
        columns = "time, thread, kind, body, checksum"
        run = self.connection.execute
        run("PRAGMA temp_store=MEMORY")
        run("BEGIN IMMEDIATE")
        try:
            (found,) = run(f"SELECT count(*) FROM events WHERE {old}").fetchone()
            dropped = int(found) * 3 // 4
            run(f"DELETE FROM events WHERE id IN (SELECT id FROM events WHERE {old} ORDER BY id LIMIT {dropped})")
            run(f"CREATE TEMP TABLE kept AS SELECT {columns} FROM events ORDER BY id")
            run("DELETE FROM events")
            run(f"INSERT INTO events ({columns}) SELECT {columns} FROM kept ORDER BY kept.rowid")
            run("DROP TABLE kept")
            run("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # A disk without room has undone it.
                run("ROLLBACK")
            raise
        with suppress(sqlite3.Error):  # Somebody reads: it is done another time.
            run("PRAGMA wal_checkpoint(TRUNCATE)")
        return dropped

    def close(self) -> None:
        """Let go of the log, in good order if that can be."""
        if unchanged(self._descriptors):
            with suppress(sqlite3.Error):
                self.connection.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.connection))

    def _go_on_in_a_copy(self) -> None:
        """Put a copy in the place of the log, which is a new file to SQLite, and leave the old connection as it is.

        Whoever looks finds the log whole at any time: what is in the old write-ahead log is in the copy as well.
        """
        _log.debug("the program closed the descriptors of %s; going on with others", self._folder)
        file = self._folder / EVENTS
        _lost.add(self._database)
        with file.open("rb") as old:
            # Keeps the inode taken: SQLite would mistake another database that gets it for the lost one.
            _keep_forever(mmap.mmap(old.fileno(), 1, access=mmap.ACCESS_READ))
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".log-") as temporary:
            for part in _parts(file, "", "-wal"):
                shutil.copyfile(part, Path(temporary, part.name))
            with closing(connect(Path(temporary))) as copy:
                make_single_file(copy)
            if _parts(Path(temporary, EVENTS), "-wal"):
                raise OSError("the copy of the log is not complete")
            Path(temporary, EVENTS).replace(file)
        for part in _parts(file, "-wal", "-shm"):
            part.unlink()
        self._open()


def insert(connection: sqlite3.Connection, thread: int, kind: str, body: str) -> None:
    """Append one event that happened now."""
    if len(body) > MAX_BODY:
        raise ValueError(f"an event of {len(body)} bytes is more than a recording takes")
    now = time.time()
    row = (now, thread, kind, body, _checksum(now, thread, kind, body))
    connection.execute("INSERT INTO events (time, thread, kind, body, checksum) VALUES (?, ?, ?, ?, ?)", row)


def _checksum(now: object, thread: object, kind: object, body: object) -> int:
    """Of one event: SQLite has none for its pages, and gives other rows where few of their bytes are damaged.

    That no event is missing is seen by the ids, and that the last is there by what it says.
    """
    state = xxhash.xxh3_64(f"{now!r} {thread!r} {kind!r} ".encode("utf-8", "backslashreplace"))
    state.update((body if isinstance(body, str) else repr(body)).encode("utf-8", "backslashreplace"))
    return state.intdigest() >> 1  # SQLite's integers are signed.


def make_single_file(connection: sqlite3.Connection) -> None:
    """Fold the write-ahead log into the database, so that one file can be copied; leave it if someone is reading."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")


def _keep_forever(value: object) -> None:
    """Keep `value` from being finalized, also when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _open_descriptors() -> list[int]:
    for listing in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return [int(name) for name in os.listdir(listing)]  # noqa: PTH208  # numbers, no paths
    return [number for number in range(1024) if identity(number) is not None]


def _parts(file: Path, *endings: str) -> list[Path]:
    return [part for ending in endings if os.path.lexists(part := file.with_name(file.name + ending))]


Row = tuple[int, object, object, object, object, bool]


def read_events(folder: Path) -> list[Row]:
    """Return (id, time, thread, kind, body, intact) of every event in the order they happened, of whatever types.

    The ids of a log that is whole count from 1. What is not `intact` is not what was written.

    The run may be finished, running or killed. Nothing is written to the recording, and nothing in it is executed.
    Raise RecordingError if there is no log, or one that torchsan does not write.
    """
    file = folder / EVENTS
    require_plain(file)
    if not file.exists():
        raise _nothing_recorded(folder)
    try:
        # Without a -shm nobody has the log open, and SQLite would leave one to read a -wal: so read a copy.
        wal, shm = bool(_parts(file, "-wal")), bool(_parts(file, "-shm"))
        # Readers write into a -shm: one with another name may be somebody's file.
        named_twice = any(part.lstat().st_nlink > 1 for part in _parts(file, "-wal", "-shm"))
        if (shm or not wal) and not named_twice and identity(file) not in _lost:
            with suppress(sqlite3.OperationalError):  # Such as a folder that cannot be written to.
                return _read(file, "mode=ro" if wal or shm else "mode=ro&immutable=1")
        with tempfile.TemporaryDirectory(prefix="torchsan-") as temporary:
            for part in _parts(file, "", "-wal"):
                source = os.fdopen(open_plain(part, follow=False), "rb")
                with source, Path(temporary, part.name).open("xb") as copy:
                    shutil.copyfileobj(source, copy)
            return _read(Path(temporary, EVENTS), "mode=ro")
    except _EmptyLogError:
        raise _nothing_recorded(folder) from None
    except (OSError, sqlite3.Error, OverflowError, UnicodeDecodeError) as e:  # A damaged name breaks SQLite's message.
        raise RecordingError(
            f"cannot read {file}: {e}; the recording is damaged or was not written by torchsan", slug="no-recording"
        ) from e


def require_plain(file: Path) -> None:
    """Raise RecordingError if the log, or what SQLite looks for beside it, is a link, a pipe or the like."""
    for part in _parts(file, "", "-wal", "-shm", "-journal"):
        if not stat.S_ISREG(part.lstat().st_mode):
            raise RecordingError(f"{part} is not a plain file; the recording is damaged", slug="no-recording")


def open_log(file: Path, how: str) -> sqlite3.Connection:
    """Open a log to be read. Raise RecordingError if it is none by itself, or became a link while it was looked at.

    SQLite follows links, says whereto, and then opens no link any more.
    """
    require_plain(file)
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, isolation_level=None)
    try:
        connection.text_factory = os.fsdecode
        opened = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        connection.text_factory = str
        if opened.name != file.name or os.path.realpath(opened.parent) != os.path.realpath(file.parent):
            raise RecordingError(f"{file} is not a plain file; the recording is damaged", slug="no-recording")
    except BaseException:
        connection.close()
        raise
    return connection


class _EmptyLogError(Exception):
    """There is a database, and nothing in it."""


def _nothing_recorded(folder: Path) -> RecordingError:
    return RecordingError(
        f"nothing is recorded in {folder}: its program ended or was killed before it wrote to {EVENTS}; run it again",
        slug="no-recording",
    )


def _read(file: Path, how: str) -> list[Row]:
    with closing(open_log(file, how)) as connection:
        # The pages of a hostile file can refer to each other without end. An honest byte takes less than a step.
        budget = iter(range(100 + _size(file) // 10_000))
        connection.set_progress_handler(lambda: next(budget, None) is None, 10_000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BODY + 1024)
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA cell_size_check=ON")
        summed = _check_schema(connection)
        checksum = "checksum" if summed else "NULL"
        rows: list[Row] = []
        taken = parsed = size = 0
        query = f"SELECT id, time, thread, kind, body, {checksum} FROM events NOT INDEXED ORDER BY id"
        for *row, written in connection.execute(query):
            number, time_, thread, kind, body = row
            intact = not summed or written == _checksum(time_, thread, kind, body)
            rows.append((number, time_, thread, kind, body, intact))
            taken += 8 + sum(len(value) for value in row if isinstance(value, str | bytes))
            if taken > size and taken > (size := _size(file)):
                raise sqlite3.DatabaseError("its events are larger than the file")
            parsed += _in_memory(body)
            if parsed > _ALLOWANCE + _DENSITY * size and parsed > _ALLOWANCE + _DENSITY * (size := _size(file)):
                raise sqlite3.DatabaseError("its events hold more values than torchsan writes into such a file")
        return rows


def _in_memory(body: object) -> int:
    """About how much memory an event takes once it is parsed, without the characters of its texts."""
    if not isinstance(body, str):
        return _ROW
    return _ROW + _LIST * body.count("[") + _DICT * body.count("{") + _VALUE * body.count(",")


def _size(file: Path) -> int:
    return sum(part.stat().st_size for part in _parts(file, "", "-wal"))


def _check_schema(connection: sqlite3.Connection) -> bool:
    """Return whether the events have checksums.

    Raise sqlite3.DatabaseError unless `events` is our table: columns, views and modules of others can compute.
    """
    found = connection.execute("SELECT type, sql FROM sqlite_master WHERE name = 'events' COLLATE NOCASE").fetchmany(2)
    if found == [("table", _EVENTS_TABLE)]:
        return True
    if found == [("table", _WITHOUT_CHECKSUMS)]:
        return False
    if not found and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        raise _EmptyLogError
    if [kind for kind, _ in found] == ["table"]:
        raise sqlite3.DatabaseError("its table of events is not one that torchsan writes")
    raise sqlite3.DatabaseError("it has no table of events")
