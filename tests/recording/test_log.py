from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.errors import RecordingError
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.store import Store

ROOT = Path(__file__).parents[2]

# What a daemon does, in the middle of a recording and after it: close what it did not open, and open its own files.
_CLOSES = """
import os, sys
from contextlib import closing, suppress
from pathlib import Path
sys.path.insert(0, os.getcwd())
from torchsan.recording import Reader, Writer, finalize
from torchsan.files import _OUT_OF_THE_WAY
from tests.samples import finding, graph

def take_the_numbers(turn):
    os.closerange(3, 4096)
    for n in range(30):
        number = os.open(f"{sys.argv[1]}/mine-{turn}-{n}", os.O_RDWR | os.O_CREAT)
        os.write(number, b"mine" * 5000)
        os.dup2(number, _OUT_OF_THE_WAY - 20 + n)  # Where torchsan's descriptors are.

folder = Path(sys.argv[1], "run")
writer = Writer.create(folder, command=[])
writer.finding(finding())
for turn in range(3):
    take_the_numbers(turn)
    writer.graph(graph())
    for _ in range(200):
        writer.finding(finding(evidence={"text": "x" * 10_000}))
    if sys.argv[2] == "read":
        assert len(Reader(folder).findings()) == 200 * (turn + 1) + 1
take_the_numbers("last")
match sys.argv[2]:
    case "close":
        writer.close()
        finalize(folder, None)
        again = Writer.create(Path(sys.argv[1], "again"), command=[])  # It could get the inode of the lost log.
        again.finding(finding())
        again.close()
    case "kill":
        writer.skipped("a", "b")
        os.kill(os.getpid(), 9)
assert writer.degraded is None
"""


@pytest.mark.parametrize("then", ["close", "kill", "exit", "read"])
def test_a_program_that_closes_our_descriptors_keeps_its_files_and_its_recording(tmp_path: Path, then: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CLOSES, str(tmp_path), then], cwd=ROOT, capture_output=True)
    assert done.returncode == (-signal.SIGKILL if then == "kill" else 0), done.stderr.decode()
    mine = list(tmp_path.glob("mine-*"))
    assert len(mine) == 120
    for file in mine:
        assert file.read_bytes() == b"mine" * 5000, file
    finalize(tmp_path / "run", Program(exit=0))
    reader = Reader(tmp_path / "run")
    assert len(reader.findings()) == 601
    assert reader.closed == (then == "close")
    assert len(reader.coverage().skipped) == (then == "kill")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "artifacts",
        "events.sqlite",
        "manifest.json",
        "tensors",
    ]


_DAEMON = """
import os
import torch

def step(function):
    torch.compile(function)(torch.randn(50, requires_grad=True)).sum().backward()

step(lambda x: (x.sin() + 1).cos())
os.closerange(3, 4096)
for n in range(30):
    os.write(os.open(f"mine-{n}", os.O_RDWR | os.O_CREAT), b"mine")
torch._dynamo.reset()
step(lambda x: (x.exp() * 2).tanh())
"""


def test_a_daemon_is_watched_before_and_after_it_closes_all_descriptors(tmp_path: Path) -> None:
    (tmp_path / "daemon.py").write_text(_DAEMON)
    command = [sys.executable, "-m", "torchsan", "run", "--check", "values", "--watch", "save", "--out", "run"]
    # Inductor's own workers would not survive the loss of their pipes.
    environ = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run([*command, "daemon.py"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [file.read_bytes() for file in tmp_path.glob("mine-*")] == [b"mine"] * 30
    reader = Reader(tmp_path / "run")
    assert len(reader.graphs()) == 4
    assert reader.closed
    with Store(reader.store) as store:
        assert store.fsck()
        assert {name.partition("/")[0] for name in store.names()} == {
            "graph0-forward",
            "graph0-backward",
            "graph1-forward",
            "graph1-backward",
        }


def test_a_log_whose_descriptors_were_lost_and_that_cannot_be_copied_is_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = """
import os, shutil, sys
from contextlib import closing, suppress
from pathlib import Path
sys.path.insert(0, os.getcwd())
from torchsan.errors import UsageError
from torchsan.recording import Writer, finalize
from torchsan.files import _OUT_OF_THE_WAY
from tests.samples import finding
writer = Writer.create(Path(sys.argv[1], "run"), command=[])
os.closerange(3, 4096)
files = [os.open(f"{sys.argv[1]}/mine-{n}", os.O_RDWR | os.O_CREAT) for n in range(30)]
for n, number in enumerate(files):
    os.dup2(number, _OUT_OF_THE_WAY - 20 + n)
shutil.rmtree(writer.path)
writer.finding(finding())
writer.finding(finding())
writer.close()
finalize(writer.path, None)
assert len(writer.findings) == 2
assert writer.degraded
try:  # Where the inode of the lost log is given again, no log can be written.
    again = Writer.create(Path(sys.argv[1], "again"), command=[])
    again.finding(finding())
    again.close()
except UsageError:
    pass
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)
    assert capfd.readouterr().err.count("recording is incomplete") == 1
    assert {file.read_bytes() for file in tmp_path.glob("mine-*")} == {b""}


def _rewrite_schema(recording: Path, *statements: str) -> None:
    """Make the events something else, with the rows of the recording out of reach."""
    (recording / "events.sqlite").unlink()
    database = sqlite3.connect(recording / "events.sqlite")
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    writer = Writer.create(tmp_path / "run", command=["a.py"])
    writer.graph(graph())
    writer.close()
    finalize(writer.path, Program(exit=0))
    return writer.path


GENERATED = "CREATE TABLE events (id INTEGER PRIMARY KEY, time REAL, thread INTEGER, kind TEXT, {} AS ({}))"
HOSTILE = {
    "a generated column": (
        GENERATED.format("body", "hex(zeroblob(60000000))"),
        "INSERT INTO events (kind) VALUES ('a'), ('b'), ('c'), ('d'), ('e'), ('f'), ('g'), ('h')",
    ),
    "a virtual table": ("CREATE VIRTUAL TABLE events USING fts5(id, time, thread, kind, body)",),
    "a view": (
        "CREATE VIEW events AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)"
        " SELECT id, 1.0 AS time, 1 AS thread, 'note' AS kind, '{}' AS body FROM n",
    ),
}


@pytest.mark.parametrize("statements", HOSTILE.values(), ids=HOSTILE)
def test_only_the_table_that_torchsan_writes_is_read(recording: Path, statements: tuple[str, ...]) -> None:
    _rewrite_schema(recording, *statements)
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="table of events"):
            Reader(recording)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_rows_that_share_their_pages_are_refused(recording: Path) -> None:
    """A file of a few pages whose tree refers to one leaf over and over, so that its rows have no end."""
    _rewrite_schema(
        recording,
        "PRAGMA page_size=512",
        "CREATE TABLE events (id INTEGER PRIMARY KEY, time REAL, thread INTEGER, kind TEXT, body TEXT)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)"
        " INSERT INTO events (kind, body) SELECT 'note', '{}' FROM n",
    )
    file = recording / "events.sqlite"
    data = bytearray(file.read_bytes())
    root = data[512:1024]
    assert root[0] == 5, "the root of the table is an interior page"
    # Each page is an interior one whose children are all the next page; the last one is a leaf.
    leaf = next(bytes(data[at : at + 512]) for at in range(1024, len(data), 512) if data[at] == 13)
    depth, fan = 12, 40
    pages = [bytes(data[:512])]
    for level in range(depth):
        child = (level + 3).to_bytes(4, "big")
        page = bytearray(512)
        page[0] = 5
        page[3:5] = fan.to_bytes(2, "big")
        start = 512 - 5 * fan
        page[5:7] = start.to_bytes(2, "big")
        page[8:12] = child
        for n in range(fan):
            page[12 + 2 * n : 14 + 2 * n] = (start + 5 * n).to_bytes(2, "big")
            page[start + 5 * n : start + 5 * n + 5] = child + b"\x01"
        pages.append(bytes(page))
    file.write_bytes(b"".join(pages) + leaf)
    with pytest.raises(RecordingError):
        Reader(recording)


def test_any_flipped_bit_of_the_schema_is_read_or_refused(recording: Path) -> None:
    file = recording / "events.sqlite"
    data = file.read_bytes()
    start = data.index(b"CREATE TABLE events") - 60
    for at in range(start, start + 160):
        for bit in (0x01, 0x20, 0x80):
            file.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            with suppress(RecordingError):
                Reader(recording)


def test_reading_a_log_that_nobody_has_open_leaves_no_file_behind(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.finding(finding())
    copy = tmp_path / "copy"
    shutil.copytree(writer.path, copy, ignore=shutil.ignore_patterns("*-shm"))
    writer.close()
    for folder in (copy, writer.path):  # Killed and copied; closed in good order, and not made a single file.
        before = sorted(os.listdir(folder))
        assert len(Reader(folder).findings()) == 1
        assert sorted(os.listdir(folder)) == before


def test_a_file_that_is_also_the_index_of_a_log_is_not_written_to(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=["x.py"])
    writer.finding(finding())
    copy = tmp_path / "copy"
    shutil.copytree(writer.path, copy, ignore=shutil.ignore_patterns("*-shm"))
    writer.close()
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (copy / "events.sqlite-shm").hardlink_to(mine)
    assert [f.id for f in Reader(copy).findings()] == ["F1"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("left", ["no log", "an empty log", "a log without tables"])
def test_a_run_that_was_killed_before_it_recorded_is_not_called_damaged(recording: Path, left: str) -> None:
    file = recording / "events.sqlite"
    file.unlink()
    if left != "no log":
        file.touch()
    if left == "a log without tables":
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA journal_mode=WAL")
    with pytest.raises(RecordingError, match="killed before it wrote") as e:
        Reader(recording)
    assert e.value.slug == "no-recording"
    assert "damaged" not in str(e.value)


def test_a_file_that_was_put_in_the_place_of_the_log_is_not_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    Writer(folder).close()
    mine = tmp_path / "mine.sqlite"
    (folder / "events.sqlite").rename(mine)
    before = mine.read_bytes()
    (folder / "events.sqlite").symlink_to(mine)
    finalize(folder, Program(exit=0))
    (folder / "events.sqlite").unlink()
    (folder / "events.sqlite").hardlink_to(mine)
    finalize(folder, Program(exit=0))
    assert mine.read_bytes() == before


def test_a_log_that_becomes_a_link_while_it_is_opened_is_not_read(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    shutil.copytree(recording, secrets)

    def swap(file: Path) -> None:
        file.unlink(missing_ok=True)
        file.symlink_to(secrets / file.name)

    monkeypatch.setattr("torchsan.recording.log.require_plain", swap)
    with pytest.raises(RecordingError, match="not a plain file"):
        Reader(recording)
    monkeypatch.undo()
    Reader(secrets)
