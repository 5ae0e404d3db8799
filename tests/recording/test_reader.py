from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import torchsan
from tests.samples import finding, graph
from torchsan.errors import RecordingError
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.recording.recorder import KINDS
from torchsan.records import encode
from torchsan.report import verdict


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    writer = Writer.create(tmp_path / "run", command=["a.py"])
    writer.graph(graph())
    writer.artifact("kernel.py", "pass\n")
    writer.close()
    finalize(writer.path, Program(exit=0))
    return writer.path


@pytest.fixture
def unfinished(tmp_path: Path) -> Iterator[Path]:
    """A run that is going on: its events are in the write-ahead log."""
    writer = Writer.create(tmp_path / "going", command=["a.py"])
    writer.finding(finding())
    yield writer.path
    writer.close()


def test_a_running_recording_can_be_read(unfinished: Path) -> None:
    assert (unfinished / "events.sqlite-wal").exists()
    reader = Reader(unfinished)
    assert len(reader.findings()) == 1
    assert not reader.closed
    assert reader.program == Program()


def test_a_killed_recording_can_be_read_from_a_folder_that_cannot_be_written(unfinished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(unfinished, copy, ignore=shutil.ignore_patterns("*-shm"))
    copy.chmod(0o500)
    try:
        before = sorted(os.listdir(copy))
        assert len(Reader(copy).findings()) == 1
        if os.getuid() != 0:
            assert sorted(os.listdir(copy)) == before
    finally:
        copy.chmod(0o700)


def test_a_log_that_sqlite_cannot_open_in_place_is_copied(
    unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def refuse(database: str, *args: Any, **kwargs: Any) -> Any:
        if str(unfinished) in database:
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return connect(database, *args, **kwargs)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    assert len(Reader(unfinished).findings()) == 1


@pytest.mark.parametrize("what", ["missing", "file", "empty", "foreign"])
def test_what_is_no_recording_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    match what:
        case "file":
            path.write_text("{}")
        case "empty":
            path.mkdir()
        case "foreign":
            path.mkdir()
            (path / "manifest.json").write_text('{"name": "web app"}')
    with pytest.raises(RecordingError, match="no recording") as e:
        Reader(path)
    assert e.value.slug == "no-recording"


def edit_manifest(recording: Path, **changes: object) -> None:
    file = recording / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_newer_schema_is_refused_with_the_remedy(recording: Path) -> None:
    edit_manifest(recording, schema=3, torchsan="9.9", unheard_of=True)
    with pytest.raises(RecordingError, match=r"schema 3, written by torchsan 9\.9.*upgrade torchsan"):
        Reader(recording)


@pytest.mark.parametrize("changes", [{"schema": True}, {"command": "a.py"}, {"options": {}, "pid": "x"}, {"extra": 1}])
def test_a_malformed_manifest_is_refused(recording: Path, changes: dict[str, object]) -> None:
    edit_manifest(recording, **changes)
    with pytest.raises(RecordingError):
        Reader(recording)


def _event(record: Any) -> str:
    return json.dumps(encode(record))


HOSTILE = [
    ("finding", "{"),
    ("finding", "[]"),
    ("finding", '{"kind": "wrong-values"}'),
    ("skipped", '{"what": NaN, "reason": ""}'),
    ("graph", "[" * 100_000),
    ("note", "[" * 100_000),
    ("note", "[]"),
    ("program", '{"exit": "0"}'),
    ("checked", '{"graph": 1e999, "direction": "forward", "buffers": []}'),
    ("closed", "1" * 5000),
    ("note", b"\xff\xfe"),
    (b"\xff", "{}"),
    ("note", '{"x": ' + "[" * 900 + "]" * 900 + "}"),
    ("finding", _event(finding(id="F1", evidence={"x": 10**200}))),
    ("finding", _event(finding(id="F1/../../../../x"))),
    ("finding", _event(finding(id=""))),
    ("amended", _event(finding(id="F1\n"))),
    ("graph", _event(graph(id=10**60))),
    ("finding", _event(finding(id="F1", evidence={"x": [{}] * 300_000}))),
]


@pytest.mark.parametrize(("kind", "body"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_events_are_refused(recording: Path, kind: object, body: object) -> None:
    database = sqlite3.connect(recording / "events.sqlite")
    database.execute("INSERT INTO events (kind, body) VALUES (?, ?)", (kind, body))
    database.commit()
    database.close()
    with pytest.raises(RecordingError):
        Reader(recording)


def test_a_huge_event_is_refused(recording: Path) -> None:
    database = sqlite3.connect(recording / "events.sqlite")
    database.execute("INSERT INTO events (kind, body) VALUES ('note', CAST(zeroblob(140000000) AS TEXT))")
    database.commit()
    database.close()
    with pytest.raises(RecordingError):
        Reader(recording)


def test_a_view_in_the_place_of_the_table_is_not_evaluated(recording: Path) -> None:
    (recording / "events.sqlite").unlink()
    database = sqlite3.connect(recording / "events.sqlite")
    database.execute("CREATE VIEW events AS SELECT 1 AS id, 'closed' AS kind, '{}' AS body")
    database.close()
    with pytest.raises(RecordingError, match="no table of events"):
        Reader(recording)


@pytest.mark.parametrize("content", [b"", b"not a database, really not" * 100])
def test_a_damaged_log_is_refused(recording: Path, content: bytes) -> None:
    (recording / "events.sqlite").write_bytes(content)
    with pytest.raises(RecordingError):
        Reader(recording)


def test_a_recording_without_its_log_is_refused(recording: Path) -> None:
    (recording / "events.sqlite").unlink()
    with pytest.raises(RecordingError):
        Reader(recording)


def test_links_do_not_lead_out_of_the_recording(recording: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (recording / "artifacts" / "link.py").symlink_to(secret)
    reader = Reader(recording)
    assert reader.artifact("kernel.py") == "pass\n"
    for name in ("link.py", "../manifest.json", "../../secret", "/etc/hostname", "..", ".", "", "a\nb", "missing"):
        with pytest.raises(RecordingError):
            reader.artifact(name)

    shutil.move(recording / "artifacts", tmp_path / "elsewhere")
    (recording / "artifacts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordingError):
        reader.artifact("kernel.py")

    shutil.move(recording / "events.sqlite", tmp_path / "elsewhere.sqlite")
    (recording / "events.sqlite").symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(RecordingError):
        Reader(recording)


def test_a_pipe_in_the_place_of_the_manifest_does_not_block(recording: Path) -> None:
    (recording / "manifest.json").unlink()
    os.mkfifo(recording / "manifest.json")
    with pytest.raises(RecordingError):
        Reader(recording)


def test_a_virtual_table_in_the_place_of_the_events_is_not_asked(recording: Path) -> None:
    (recording / "events.sqlite").unlink()
    database = sqlite3.connect(recording / "events.sqlite")
    try:
        database.execute("CREATE VIRTUAL TABLE events USING fts5(id, time, thread, kind, body)")
    except sqlite3.OperationalError as e:
        pytest.skip(f"no such module here: {e}")
    finally:
        database.close()
    with pytest.raises(RecordingError, match="table of events"):
        Reader(recording)


def changed(recording: Path, sql: str) -> Reader:
    with closing(sqlite3.connect(recording / "events.sqlite")) as log, log:
        log.execute(sql)
    return Reader(recording)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE events SET kind = 'Finding' WHERE kind = 'finding'", "what are its events 'Finding'?"),
        ("DELETE FROM events WHERE kind = 'finding'", "some of its events are missing"),
        ("DELETE FROM events WHERE id = 1", "some of its events are missing"),
        ("UPDATE events SET id = id - 5", "some of its events are missing"),
        ("UPDATE events SET body = json_set(body, '$.id', 'F2') WHERE kind = 'finding'", "findings are missing"),
        ("UPDATE events SET body = replace(body, '\"error\"', '\"note\"')", "1 of its events are not what was written"),
        ("UPDATE events SET kind = 'started', body = '{}' WHERE kind = 'finding'", "not what was written"),
        ("UPDATE events SET checksum = NULL WHERE kind = 'finding'", "not what was written"),
    ],
)
def test_events_that_are_gone_altered_or_unknown_are_missed(tmp_path: Path, sql: str, said: str) -> None:
    writer = Writer.create(tmp_path / "run", command=["a.py"])
    writer.graph(graph())
    writer.finding(finding())
    writer.close()
    finalize(writer.path, Program(exit=0))
    assert Reader(writer.path).missing() == []
    reader = changed(writer.path, sql)
    assert any(said in text for text in reader.missing())
    assert verdict(reader).exit != 0
    assert any(said in text for text in verdict(reader).reasons)


def test_a_recording_without_checksums_is_still_read() -> None:
    old = Reader(Path(__file__).parents[1] / "data" / "recording-schema-1")
    assert old.manifest.schema == 1
    assert old.missing() == []


def test_a_program_whose_end_is_not_recorded_is_not_called_clean(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=["a.py"])
    writer.event("started", {})
    writer.graph(graph())
    writer.close()
    assert any("how the program ended" in reason for reason in verdict(Reader(writer.path)).reasons)
    finalize(writer.path, Program(exit=0))
    assert not any("how the program ended" in reason for reason in verdict(Reader(writer.path)).reasons)


def _damaged_pages(data: bytes, page_size: int = 4096) -> Iterator[bytes]:
    """Yield the database with a header of a page, or a pointer to a row, damaged such that it may still look sound."""

    def patched(at: int, value: bytes) -> Iterator[bytes]:
        if data[at : at + len(value)] != value:
            yield data[:at] + value + data[at + len(value) :]

    for start in range(page_size, len(data), page_size):
        kind, cells = data[start], int.from_bytes(data[start + 3 : start + 5], "big")
        for at, value in itertools.product(range(start, start + 8), (0, 1, 2, 5, 13, 255)):
            yield from patched(at, bytes([value]))
        if kind not in (5, 13):
            continue
        first = start + (12 if kind == 5 else 8)
        pointers = [data[first + 2 * n : first + 2 * n + 2] for n in range(cells)]
        for n, pointer in itertools.product(range(cells), pointers):
            yield from patched(first + 2 * n, pointer)
        for page in range(1, len(data) // page_size + 1) if kind == 5 else ():
            for at in (start + 8, *(start + int.from_bytes(pointer, "big") for pointer in pointers)):
                yield from patched(at, page.to_bytes(4, "big"))


def test_a_damaged_page_does_not_hide_a_finding(tmp_path: Path) -> None:
    """A pointer to the row beside it shows that one twice, and the finding not at all."""
    writer = Writer.create(tmp_path / "run", command=["a.py"])
    writer.graph(graph())
    for n in range(12):
        writer.event("seed", {"torch": n, "x": "y" * 700})
    writer.finding(finding())
    writer.close()
    finalize(writer.path, Program(exit=0))
    file = writer.path / "events.sqlite"
    damaged = list(_damaged_pages(file.read_bytes()))
    assert len(damaged) > 200
    for data in damaged:
        file.write_bytes(data)
        with suppress(RecordingError):
            reader = Reader(writer.path)
            assert verdict(reader).exit != 0
            assert len(reader.findings()) == 1 or reader.missing() or not reader.closed


def test_every_kind_of_event_that_is_written_is_known() -> None:
    written = re.compile(r"""(?:\.event|\._write)\(\s*"([a-z-]+)"|insert\([\w.]+, \d+, "([a-z-]+)\"""")
    sources = Path(torchsan.__file__).parent.rglob("*.py")
    found = {a or b for source in sources for a, b in written.findall(source.read_text(encoding="utf-8"))}
    assert found == KINDS
