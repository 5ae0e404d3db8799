"""Changes recordings at random, knowing how they are made, and reads each with everything that reads recordings.

`python -m tests.programs.mutated_recordings SEED COUNT` prints what went wrong, a line each, and how many it tried.
Only a TorchsanError may come of it, in ten seconds and 250 MB more than PyTorch takes; a report of damage is not
`clean`; no file may be written but those that were asked for, no program started, nothing of the recording executed.
The seconds are those that this process computes, because a machine that others use too makes any program late; one that
waits for something is ended after two minutes.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.report.html.recordings import ordinary
from torchsan.cli.main import main
from torchsan.errors import TorchsanError
from torchsan.recording import Reader
from torchsan.recording.log import _checksum
from torchsan.report.follow import follow
from torchsan.repro.exhibits import Loads, read_wanted

DATA = Path(__file__).parents[1] / "data" / "recording-schema-1"
SECONDS, WAITING = 10, 120
MEGABYTES = 250

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**300, 0.5, 1e308, "NaN", "Infinity", "", "x", "F1",
    "F1/../x", "../../etc/passwd", "/etc/passwd", "\x1b[2J\u202e\ud800\x00", "A" * 5000, "forward", "aten.sin.default",
    "getitem", [], [[]], [None], {}, {"node": "x"}, {"": {}}, {"re": 1, "im": "NaN"}, [[[[[[1]]]]]],
    list(range(300)),
)  # fmt: skip


def odd(dice: random.Random) -> Any:
    """A value that may not belong where it is put; nobody else has it."""
    return copy.deepcopy(dice.choice(ODD))


KINDS = (
    "graph finding amended skipped checked ops-checked program failed closed degraded seed exhibit no-exhibit "
    "incomplete memory nodes rank replica-step replicas started stopped times watched anything"
).split()
SCHEMAS = (
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
    "CREATE INDEX i ON events (kind)",
    "CREATE VIEW more AS SELECT * FROM events, events",
    "ALTER TABLE events ADD COLUMN more TEXT",
    "ALTER TABLE events RENAME TO others",
    "ALTER TABLE events RENAME COLUMN body TO b",
    "CREATE TABLE Events2 (id)",
    "PRAGMA user_version = 77",
    "PRAGMA application_id = 77",
    "PRAGMA journal_mode = WAL",
    "DELETE FROM events",
    "DROP VIEW IF EXISTS findings",
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with each of its keys."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def change_json(dice: random.Random, value: Any) -> Any:
    """Change a JSON value in one to three places."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        found = list(places(value)) if isinstance(value, dict | list) else []
        if not found or dice.random() < 0.02:
            return odd(dice)
        holder, key = dice.choice(found)
        match dice.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[dice.choice(["more", "", "__class__", key + "_"])] = odd(dice)
            case 2:
                other, name = dice.choice(found)
                with contextlib.suppress(KeyError, IndexError):
                    holder[key] = json.loads(json.dumps(other[name]))
            case 3 if isinstance(holder, list):
                holder += [holder[key]] * dice.choice((1, 50))
            case _:
                holder[key] = odd(dice)
    return value


def change_bytes(dice: random.Random, data: bytes) -> bytes:
    """Flip, cut, fill or copy a stretch of bytes."""
    if not data:
        return b"\x00"
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    match dice.randrange(6):
        case 0:
            return data[:a]
        case 1:
            return data[:a] + data[b:]
        case 2:
            return data[:a] + bytes(min(b - a, 64)) + data[a + min(b - a, 64) :]
        case 3:
            return data[:a] + data[b : b + 40] + data[a + 40 :]
        case _:
            changed = bytearray(data)
            for _ in range(dice.choice((1, 1, 4, 30))):
                changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
            return bytes(changed)


def mutate_event(dice: random.Random, folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "events.sqlite")) as log, log:
        rows = log.execute("SELECT id, kind, body FROM events").fetchall()
        rare = [row for row in rows if row[1] not in ("watched", "ops-checked")]
        number, _kind, body = dice.choice(rare if dice.random() < 0.8 else rows)
        match dice.randrange(9):
            case 0:
                log.execute(
                    "UPDATE events SET kind = ? WHERE id = ?", (dice.choice((*KINDS, None, b"\xff", 7)), number)
                )
            case 1:
                other = dice.choice((None, "x", float("inf"), -1e300, 2**62, b"\x00"))
                log.execute(f"UPDATE events SET {dice.choice(('time', 'thread'))} = ? WHERE id = ?", (other, number))
            case 2:
                log.execute("DELETE FROM events WHERE id = ?", (number,))
            case 3:
                log.execute("INSERT INTO events (time, thread, kind, body) SELECT time, thread, kind, body FROM events")
            case 4:
                text = dice.choice(
                    (body[: dice.randrange(len(body) + 1)], body + "}", "null", "[" * 2000, body.encode())
                )
                log.execute("UPDATE events SET body = ? WHERE id = ?", (text, number))
            case _:
                text = json.dumps(change_json(dice, json.loads(body)))
                log.execute("UPDATE events SET body = ? WHERE id = ?", (text, number))


def mutate_and_sign(dice: random.Random, folder: Path) -> None:
    """Change an event, and write the checksums that belong to what is there now, as one who means it would."""
    mutate_event(dice, folder)
    with contextlib.closing(sqlite3.connect(folder / "events.sqlite")) as log, log:
        if any(column[1] == "checksum" for column in log.execute("PRAGMA table_info(events)")):
            for number, *row in log.execute("SELECT id, time, thread, kind, body FROM events").fetchall():
                log.execute("UPDATE events SET checksum = ? WHERE id = ?", (_checksum(*row), number))


def mutate_schema(dice: random.Random, folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "events.sqlite")) as log, contextlib.suppress(sqlite3.Error), log:
        if dice.random() < 0.7:
            log.execute(dice.choice(SCHEMAS))
            return
        log.execute("PRAGMA writable_schema = ON")
        for name, sql in log.execute("SELECT name, sql FROM sqlite_master").fetchall():
            changed = change_bytes(dice, sql.encode()).decode("utf-8", "replace")
            if dice.random() < 0.5:
                log.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (changed, name))


def mutate_manifest(dice: random.Random, folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(change_json(dice, json.loads(file.read_text()))))


def mutate_bytes(dice: random.Random, folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    file = folder / "events.sqlite" if dice.random() < 0.5 else dice.choice(sorted(files))
    file.write_bytes(change_bytes(dice, file.read_bytes()))


def mutate_files(dice: random.Random, folder: Path) -> None:
    path = dice.choice(sorted(folder.rglob("*")))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    match dice.randrange(6):
        case 0:
            path.symlink_to("/etc/passwd")
        case 1:
            path.symlink_to(folder)
        case 2:
            os.mkfifo(path)
        case 3:
            path.mkdir()
        case 4:
            (folder / "events.sqlite-wal").write_bytes(dice.randbytes(100))


MUTATIONS: tuple[Callable[[random.Random, Path], None], ...] = (
    mutate_event, mutate_event, mutate_and_sign, mutate_and_sign, mutate_and_sign, mutate_schema, mutate_manifest,
    mutate_bytes, mutate_bytes, mutate_files,
)  # fmt: skip


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """What is in a folder, as it can be told without reading it."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_mode, 0 if path.is_dir() else status.st_size)
    return found


class Enough(BaseException):
    """Ends a loop that would wait for the run to go on."""


def stop(seconds: float) -> None:
    raise Enough


def read_all(dice: random.Random, run: Path, original: Path, out: Path) -> int:
    """Read a recording as a report, and in some of the other ways; return the report's status.

    Raise what is not a TorchsanError.
    """
    compared = [f"--json={out / 'd.json'}", f"--html={out / 'd.html'}", str(original), str(run)]
    others = [
        *(["report", f"--{name}={out / name}", str(run)] for name in ("json", "html", "perfetto", "sarif", "junit")),
        ["report", f"--markdown={out / 'r.md'}", "--github", str(run)],
        ["report", f"--json={out / 'many.json'}", str(run), str(original)],
        ["report", "--all", str(run)],
        ["report", "--finding", "F1", str(run)],
        ["report", "--kernels", "*", str(run)],
        ["export", "--parquet", str(out / "tables"), str(run), str(original)],
        ["values", str(run)],
        ["values", str(run), "--save", str(out / "saved")],
        ["diff", "--all", "--time-limit", "0", *compared],
        ["diff", "--time-limit", "1", *compared],
        ["store", "ls", str(run / "tensors")],
    ]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(["report", str(run)])
        for command in dice.sample(others, 3):
            main(command)
    with contextlib.suppress(TorchsanError):
        read_wanted(Reader(run), None, Loads(modules=("some",)))
    with contextlib.suppress(TorchsanError, Enough):
        follow(run, io.StringIO(), stop)
    return status


class Watchman:
    """Sees what Python asks the system for: programs, code of a recording, files to write."""

    STARTS = frozenset(("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen"))
    WRITES = frozenset(("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate"))

    def __init__(self, root: Path) -> None:
        self.seen: list[str] = []
        self.watching = False
        self._root = str(root)
        self._ours = (str(root / "out"), os.path.join(tempfile.gettempdir(), "torchsan-"))  # a beginning
        sys.addaudithook(self._hook)

    def _hook(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in self.STARTS or event == "pickle.find_class":
            self.seen.append(f"{event} {given!r:.200}")
        elif event == "exec" and given[0].co_filename.startswith(self._root):
            self.seen.append(f"executes {given[0].co_filename}")
        elif event == "ctypes.dlopen" and str(given[0]).startswith(self._root):
            self.seen.append(f"loads {given[0]}")
        elif event in self.WRITES or (event == "open" and self._writes(given[1], given[2])):
            folder = given[-1] if event in ("os.remove", "os.rmdir", "os.mkdir") else -1
            self._writing(event, given[0], folder)

    @staticmethod
    def _writes(mode: object, flags: object) -> bool:
        return (
            bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) if isinstance(flags, int) else mode not in ("r", "rb")
        )

    def _writing(self, event: str, path: object, folder: int) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            start = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else ""
            text = os.path.abspath(os.path.join(start, os.fsdecode(path)))  # not through links
            if not text.startswith(self._ours) or text.startswith(self._root + os.sep + "run"):
                self.seen.append(f"{event} of {text}")


def try_one(seed: int, bases: dict[Path, int], root: Path, watchman: Watchman) -> str | None:
    """Make and read one mutation; return what went wrong."""
    dice = random.Random(seed)
    base = dice.choice(list(bases))
    run, out = root / "run", root / "out"
    for folder in (run, out):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, run)
    out.mkdir()
    mutation = dice.choice(MUTATIONS)
    mutation(dice, run)
    name = f"seed {seed}, {mutation.__name__}"
    before = state(run)
    faulthandler.dump_traceback_later(WAITING, exit=True)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    watchman.watching = True
    try:
        status = read_all(dice, run, base, out)
    except Exception as e:  # noqa: BLE001  # whatever it is, it is what this looks for
        where = traceback.extract_tb(e.__traceback__)[-1]
        return f"{name}: {type(e).__name__}: {e!s:.200} at {where.filename}:{where.lineno}"
    finally:
        watchman.watching = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    if watchman.seen:
        return f"{name}: {watchman.seen}"
    if state(run) != before or sorted(os.listdir(root)) != ["bases", "out", "run"]:
        return f"{name}: something was written"
    if status == 0 and bases[base] and mutation is not mutate_and_sign:
        return f"{name}: falsely clean"
    return None


def peak() -> int:
    """The most memory that this process had so far, in megabytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024 if found else 0


def late(number: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


def go(first: int, count: int) -> int:
    importlib.import_module("torch")  # Or the first that needs it seems to take long.
    before = peak()
    signal.signal(signal.SIGPROF, late)
    os.environ["TORCHSAN_DEBUG"] = "1"  # `main` lets pass what it did not expect.
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="torchsan-mutated-") as temporary:
        root = Path(temporary)
        real, made_up = root / "bases" / "real", root / "bases" / "made-up"
        shutil.copytree(DATA, real)
        ordinary(made_up)
        watchman = Watchman(root)
        with contextlib.redirect_stdout(io.StringIO()):
            # Of schema 1, which has no checksums, it cannot be told that another than the writer changed an event.
            bases = {real: 0, made_up: main(["report", str(made_up)])}
        for seed in range(first, first + count):
            problem = try_one(seed, bases, root, watchman)
            watchman.seen.clear()
            if problem is not None:
                wrong += 1
                print(problem, flush=True)
    print(f"{count} mutations, {wrong} problems")
    used = peak() - before
    print(f"{used} MB at most", file=sys.stderr)
    return 1 if wrong or used > MEGABYTES else 0


if __name__ == "__main__":
    sys.exit(go(int(sys.argv[1]), int(sys.argv[2])))
