from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.samples import finding, graph
from torchsan.errors import RecordingError, UsageError
from torchsan.recording import Reader, Timed, Writer
from torchsan.records import CallTimes, Direction, GraphId, LaunchTime, Watched, encode
from torchsan.report.perfetto import PerfettoExporter, _Trace, _watched, as_trace

TIMELINE = [[10, 64, 64], [11, 128, 128], [12, 64, 128]]


def memory(**changes: Any) -> dict[str, Any]:
    body = {"graph": 0, "direction": "forward", "call": 0, "peak": 128, "planned_peak": 128, "timeline": TIMELINE}
    return body | {"allocated": 128, "saved": 0, "given": 0, "returned": 0, "by_source": []} | changes


def watched(launch: int, phase: str) -> Watched:
    return Watched(
        graph=GraphId(0),
        direction=Direction.FORWARD,
        call=0,
        launch=launch,
        kernel="cpp",
        phase=phase,
        name="b",
        value=1,
    )


def recorded(folder: Path, *, values: bool = False, **changes: Any) -> Reader:
    writer = Writer.create(folder, command=["x.py"])
    writer.graph(graph())
    if values:
        for launch in range(2):
            for phase in ("before", "before", "after"):
                writer.event("watched", {"watched": watched(launch, phase)})
        writer.event("watched", {"watched": watched(2, "before")})
    writer.event("memory", memory(**changes))
    writer.finding(finding())
    writer.close()
    return Reader(folder)


def named(trace: dict[str, Any], pid: int) -> str:
    (name,) = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name" and e["pid"] == pid]
    assert isinstance(name, str)
    return name


def assert_valid(trace: dict[str, Any]) -> None:
    """As Perfetto's importer wants it: known phases, numbers that are numbers, slices of a thread that do not cross.

    It drops what has no name, or a counter that is no number, and knows a thread by its number in whatever process.
    """
    json.dumps(trace, allow_nan=False)
    owners: dict[int, set[int]] = {}
    for e in trace["traceEvents"]:
        owners.setdefault(e["tid"], set()).add(e["pid"])
        assert e["name"]
        assert e["ph"] != "M" or (e["name"] in ("process_name", "thread_name") and e["args"]["name"])
        assert e["ph"] != "i" or e["s"] == "t"
    assert all(len(pids) == 1 for pids in owners.values())
    ends: dict[tuple[int, int], float] = {}
    slices = sorted((e for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda e: e["ts"])
    for e in slices:
        assert e["dur"] >= 0
        assert e["ts"] >= ends.get((e["pid"], e["tid"]), 0) - 1e-3
        ends[e["pid"], e["tid"]] = e["ts"] + e["dur"]
    for e in trace["traceEvents"]:
        assert e["ph"] in "MXiC"
        assert type(e["pid"]) is int
        assert type(e["tid"]) is int
        assert 0 <= e["tid"] < 2**32
        assert e["ph"] == "M" or (isinstance(e["ts"], float) and e["ts"] >= 0)
        if e["ph"] == "C":
            assert all(type(v) is int for v in e["args"].values())


def test_launches_that_were_watched_are_by_the_clock(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "run", values=True)
    trace = as_trace(recording)
    assert_valid(trace)
    launches = [e for e in trace["traceEvents"] if e["name"] == "cpp"]
    assert [e["ph"] for e in launches] == ["X", "X", "i"]
    times = [e.time for e in recording.timed() if e.kind == "watched"]
    assert launches[0]["dur"] == pytest.approx((times[2] - times[0]) * 1e6, abs=0.01)
    assert launches[0]["args"]["launch"] == "0 forward call 0 #0"
    assert "launches by the clock: 2" in " ".join(trace["otherData"]["notes"])
    assert {e["pid"] for e in launches} == {1}


def test_what_has_no_times_is_apart_and_says_so(tmp_path: Path) -> None:
    trace = as_trace(recorded(tmp_path / "run"))
    assert_valid(trace)
    kernels = [e for e in trace["traceEvents"] if e["name"].startswith("cpp_fused_relu")]
    assert [(e["ts"], e["dur"]) for e in kernels] == [(0.0, 1.0), (1.0, 1.0)]
    assert "no times were recorded" in named(trace, kernels[0]["pid"])
    steps = [e for e in trace["traceEvents"] if e["name"] == "bytes in graph 0 forward call 0"]
    assert [(e["args"]["planned"], e["args"]["actual"]) for e in steps] == [(64, 64), (128, 128), (64, 128)]
    assert "no times were recorded" in named(trace, steps[0]["pid"])
    assert any("without times: no call of it was timed" in note for note in trace["otherData"]["notes"])


def test_launches_that_were_timed_have_their_durations(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    launches = tuple(
        LaunchTime(nth=n, launches=1, seconds=seconds, bytes_read=8, bytes_written=4)
        for n, seconds in [(0, 2e-6), (1, 5e-6)]
    )
    times = CallTimes(graph=GraphId(0), direction=Direction.FORWARD, call=0, launches=launches)
    writer.event("times", {"times": times})
    writer.close()
    trace = as_trace(Reader(tmp_path / "run"))
    assert_valid(trace)
    kernels = [e for e in trace["traceEvents"] if e["name"].startswith("cpp_fused_relu")]
    assert [(e["ts"], e["dur"]) for e in kernels] == [(0.0, 2.0), (2.0, 5.0)]
    assert "when they began was not recorded" in named(trace, kernels[0]["pid"])
    assert not any("without times: no call" in note for note in trace["otherData"]["notes"])


def test_compiles_and_findings_and_peaks_are_by_the_clock(tmp_path: Path) -> None:
    trace = as_trace(recorded(tmp_path / "run"))
    (compile_,) = [e for e in trace["traceEvents"] if e["name"] == "compile graph 0 forward"]
    assert (compile_["ts"], compile_["dur"]) == (0, 500_000)
    (found,) = [e for e in trace["traceEvents"] if e["name"] == "F1: wrong-values"]
    assert found["ts"] >= 500_000
    (peak,) = [e for e in trace["traceEvents"] if e["name"].startswith("bytes at the peak")]
    assert peak["args"] == {"peak": 128, "planned": 128}


def test_an_empty_recording_is_an_empty_trace(tmp_path: Path) -> None:
    Writer.create(tmp_path / "run", command=[]).close()
    trace = as_trace(Reader(tmp_path / "run"))
    assert_valid(trace)
    assert trace["otherData"]["notes"] == []


@pytest.mark.parametrize("change", [{"timeline": [[1]]}, {"timeline": 7}, {"peak": None}, {"graph": "x"}])
def test_a_malformed_memory_event_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    recording = recorded(tmp_path / "run", **change)
    with pytest.raises(RecordingError, match="malformed"):
        as_trace(recording)


def test_the_command_writes_the_file_and_says_what_lacks_times(tmp_path: Path) -> None:
    recorded(tmp_path / "run")
    command = [sys.executable, "-m", "torchsan", "report", "--perfetto", "trace.json", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1  # The recording has an error.
    assert_valid(json.loads((tmp_path / "trace.json").read_text()))
    assert "wrote trace.json" in done.stderr
    assert "without times" in done.stderr
    with pytest.raises(UsageError, match="bad-target"):
        PerfettoExporter().write(Reader(tmp_path / "run"), str(tmp_path / "missing" / "x.json"), StringIO())


@pytest.mark.parametrize("seconds", [1e308, -1e308, float("inf"), float("nan")])
def test_times_that_no_clock_shows_are_drawn_at_the_end_of_it(tmp_path: Path, seconds: float) -> None:
    writer = Writer.create(tmp_path / "run", command=["x.py"])
    writer.graph(replace(graph(), compile_seconds=seconds))
    launches = [LaunchTime(nth=n, launches=1, seconds=seconds, bytes_read=0, bytes_written=0) for n in range(2)]
    times = CallTimes(graph=GraphId(0), direction=Direction.FORWARD, call=0, launches=tuple(launches))
    writer.event("times", {"times": times})
    for phase in ("before", "after"):
        writer.event("watched", {"watched": watched(0, phase)})
    writer.close()
    with closing(sqlite3.connect(tmp_path / "run" / "events.sqlite")) as log, log:
        log.execute("UPDATE events SET time = 1e308 WHERE id % 2")
        log.execute("UPDATE events SET time = -1e308 WHERE id % 2 = 0")
    PerfettoExporter().write(Reader(tmp_path / "run"), str(tmp_path / "trace"), StringIO())
    assert_valid(json.loads((tmp_path / "trace").read_text()))


def test_values_of_very_many_threads_take_little_time() -> None:
    text = json.dumps({"watched": encode(watched(0, "before"))})
    events = [Timed(time=float(n), thread=n, kind="watched", text=text) for n in range(16_000)]
    trace = _Trace(0.0)
    begun = time.process_time()
    _watched(trace, events)
    assert time.process_time() - begun < 5
    names = [e["args"]["name"] for e in trace.events if e["ph"] == "M"]
    assert sum(name.startswith("launches on thread") for name in names) == 16_000
