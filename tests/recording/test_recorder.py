from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.errors import UsageError
from torchsan.options import Options, Watch
from torchsan.recording import Program, Reader, Recorder, Writer, finalize
from torchsan.records import Check, Direction, GraphId, Skipped, StepRecord


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    options = Options(check=(Check.MEMORY,), watch=Watch.PRINT, calls=None)
    writer = Writer.create(tmp_path / "run", command=["train.py", "--fast"], options=options)
    writer.graph(graph(0, Direction.FORWARD))
    writer.graph(graph(0, Direction.BACKWARD, kernels=3))
    name = writer.artifact("0 forward/wrapper.py", "x = 1\n")
    found = writer.finding(finding())
    writer.skipped("buf7", "too large")
    writer.skipped("buf7", "too large")
    writer.checked(GraphId(0), Direction.FORWARD, ["buf0", "buf1"])
    writer.checked(GraphId(0), Direction.FORWARD, ["buf1", "buf0"])
    writer.checked(GraphId(0), Direction.BACKWARD, ["buf0"])
    writer.ops_checked(["aten.relu.default", "aten.add.Tensor"])
    writer.ops_checked(["aten.relu.default"])
    writer.event("note", {"n": 1})
    coverage = writer.coverage
    writer.close()
    finalize(writer.path, Program(exit=0))

    reader = Reader(tmp_path / "run")
    assert reader.manifest.command == ("train.py", "--fast")
    assert reader.manifest.options == options
    assert reader.graphs() == [graph(0, Direction.FORWARD), graph(0, Direction.BACKWARD, kernels=3)]
    assert found.id == "F1"
    assert reader.findings() == [found]
    assert reader.coverage() == coverage
    assert (coverage.graphs, coverage.kernels, coverage.buffers) == (2, 5, 5)
    assert (coverage.buffers_checked, coverage.ops_checked) == (3, 2)
    assert coverage.skipped == (Skipped(what="buf7", reason="too large"),)
    assert reader.events("note") == [{"n": 1}]
    assert reader.artifact(name) == "x = 1\n"
    assert reader.program == Program(exit=0)
    assert reader.closed
    assert [p.name for p in (tmp_path / "run").iterdir() if p.name.startswith("events")] == ["events.sqlite"]


def test_artifacts_of_one_name_are_kept_apart_and_inside_the_recording(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    names = [writer.artifact(n, n) for n in ("a.py", "a.py", "../../evil", "..", "", "a" * 300)]
    writer.close()
    assert len(set(names)) == len(names)
    assert names[:2] == ["a.py", "a-2.py"]
    assert sorted(p.name for p in (writer.path / "artifacts").iterdir()) == sorted(names)


def test_people_can_query_the_log(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    writer.finding(finding())
    writer.skipped("buf7", "too large")
    writer.close()
    database = sqlite3.connect(writer.path / "events.sqlite")
    try:
        kernels = list(database.execute("SELECT graph, direction, name, file, line FROM kernels"))
        assert kernels[0] == (0, "forward", "cpp_fused_relu_0", "model.py", 12)
        findings = list(database.execute('SELECT id, kind, "check", graph, kernel FROM findings'))
        assert findings == [("F1", "wrong-values", "values", 0, "cpp_fused_relu_0")]
        assert list(database.execute("SELECT what, reason FROM skipped")) == [("buf7", "too large")]
    finally:
        database.close()


def test_threads_get_distinct_ids(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    threads = [threading.Thread(target=lambda: [writer.finding(finding()) for _ in range(20)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    writer.close()
    assert [f.id for f in Reader(writer.path).findings()] == [f"F{n}" for n in range(1, 81)]


def test_a_closed_writer_is_inert(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.close()
    writer.close()
    writer.event("late", {})
    writer.finding(finding())
    assert Reader(writer.path).findings() == []


def test_runs_of_one_second_get_their_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writers = [Writer.create(None, command=[]) for _ in range(3)]
    assert len({w.path for w in writers}) == 3
    assert {w.path.parent for w in writers} == {tmp_path / "torchsan-runs"}
    for w in writers:
        w.close()


@pytest.mark.parametrize("occupant", ["recording", "file", "files", "link"])
def test_an_occupied_place_is_refused(tmp_path: Path, occupant: str) -> None:
    out = tmp_path / "out"
    match occupant:
        case "recording":
            Writer.create(out, command=[]).close()
        case "file":
            out.write_text("mine")
        case "files":
            out.mkdir()
            (out / "mine").touch()
        case "link":
            out.symlink_to(tmp_path / "nowhere" / "at-all")
            (tmp_path / "nowhere").touch()
    with pytest.raises(UsageError, match="--out"):
        Writer.create(out, command=[])


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    Writer.create(tmp_path / "out", command=[]).close()
    assert Reader(tmp_path / "out").closed


def test_remote_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="local folder"):
        Writer.create("s3://bucket/run", command=[])


def test_arguments_that_are_not_text_are_kept_readable(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=["train.py", os.fsdecode(b"caf\xe9")])
    writer.close()
    assert Reader(writer.path).manifest.command == ("train.py", "caf\\xe9")


def test_a_failing_disk_ends_the_recording_not_the_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    assert writer._log is not None
    writer._log.connection.execute("PRAGMA max_page_count=1")  # What a full disk looks like to SQLite.
    for _ in range(50):
        writer.finding(finding(evidence={"text": "x" * 5000}))
    writer.close()
    assert writer.degraded is not None
    assert "full" in writer.degraded
    assert len(writer.findings) == 50
    assert capfd.readouterr().err.count("recording is incomplete") == 1
    reader = Reader(writer.path)
    assert len(reader.graphs()) == 1
    assert not reader.closed


def test_evidence_that_is_no_json_degrades_but_does_not_raise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.finding(finding(evidence={"x": object()}))
    writer.graph(graph())
    writer.close()
    assert "no JSON for object" in capfd.readouterr().err
    reader = Reader(writer.path)
    assert reader.degraded is not None
    assert len(reader.graphs()) == 1


_FORK = """
import os, sys
sys.path.insert(0, os.getcwd())
from torchsan.recording import Writer
from tests.samples import finding, graph
writer = Writer.create(sys.argv[1], command=[])
writer.finding(finding())
pid = os.fork()
if pid == 0:
    returned = writer.finding(finding())
    writer.graph(graph())
    writer.skipped("child", "child")
    writer.close()
    sys.exit(7 if returned.id == "" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
writer.finding(finding())
os.kill(os.getpid(), 9)
"""


def test_a_forked_child_writes_nothing_and_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", _FORK, str(tmp_path / "run")], cwd=Path(__file__).parents[2])
    assert result.returncode == -9
    reader = Reader(tmp_path / "run")
    assert [f.id for f in reader.findings()] == ["F1", "F2"]
    assert reader.graphs() == []
    assert not reader.closed


def test_in_memory_the_same_is_counted_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorders = [Recorder(), Writer.create(tmp_path / "run", command=[])]
    for recorder in recorders:
        recorder.graph(graph())
        assert recorder.new_graph() == GraphId(0)
        found = recorder.finding(finding())
        recorder.amend(replace(found, message="more is known"))
        recorder.skipped("buf7", "too large")
        recorder.checked(GraphId(0), Direction.FORWARD, ["buf0"])
        recorder.ops_checked(["aten.relu.default"])
        recorder.event("note", {"n": 1})
        assert recorder.artifact("a.py", "x = 1\n") == "a.py"
    assert recorders[0].findings == recorders[1].findings
    assert recorders[0].findings[0].message == "more is known"
    assert recorders[0].coverage == recorders[1].coverage
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_log_stays_under_its_limit_and_keeps_what_was_found_and_the_newest_steps(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.max_bytes = 1
    writer.graph(graph())
    for n in range(12_000):
        if n == 5:
            writer.finding(finding())
        digests = tuple(f"{n * 7 + k:016x}" for k in range(30))
        step = StepRecord(optimizer=0, step=n, before=(), gradients=digests, parameters=digests)
        writer.event("replica-step", {"step": step})
    size = sum(part.stat().st_size for part in (tmp_path / "run").glob("events.sqlite*"))
    assert size < 16 << 20  # SQLite's own overhead, and what it keeps beside it, included; without a limit it is 16 MB.
    writer.close()
    finalize(tmp_path / "run", Program(exit=0))
    recording = Reader(tmp_path / "run")
    assert not recording.missing()
    assert recording.closed
    assert len(recording.findings()) == 1
    steps = [event["step"]["step"] for event in recording.events("replica-step")]
    assert steps == list(range(steps[0], 12_000))
    assert steps[0] > 1000
    assert any("--max-bytes" in s.reason for s in recording.coverage().skipped)
    assert (tmp_path / "run" / "events.sqlite").stat().st_size < 8 << 20
