from __future__ import annotations

import math
from pathlib import Path

import jsonschema
import pytest

from tests.samples import finding, graph
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import (
    CallCount,
    CallTimes,
    Direction,
    Gap,
    GapKind,
    GraphId,
    InFlight,
    Kind,
    LaunchTime,
    Severity,
)
from torchsan.records.finding import fingerprint
from torchsan.report.json_report import as_json, report_schema


@pytest.fixture
def recording(tmp_path: Path) -> Reader:
    writer = Writer.create(tmp_path / "run", command=["script.py"])
    writer.graph(graph())
    writer.finding(finding(evidence={"worst": math.nan, "text": "\x1b[31mred\ud800"}))
    writer.finding(
        finding(Severity.NOTE, stage=None, graph=None, kernel=None, buffer=None, nodes=(), ops=(), source=())
    )
    writer.checked(GraphId(0), Direction.FORWARD, ["buf1"])
    writer.event("calls", CallCount(graph=GraphId(0), direction=Direction.FORWARD, seen=1, checked=1))
    writer.event("calls", CallCount(graph=GraphId(0), direction=Direction.FORWARD, seen=60, checked=2))
    launch = LaunchTime(nth=0, launches=2, seconds=0.5, bytes_read=8, bytes_written=4)
    times = CallTimes(graph=GraphId(0), direction=Direction.FORWARD, call=0, launches=(launch,))
    for _ in range(2):
        writer.event("times", {"times": times})
    writer.skipped("buf7", "too large")
    again = Gap(
        kind=GapKind.RECOMPILE,
        reason="size mismatch",
        function="forward",
        file="model.py",
        line=10,
        code="def forward(self, x):",
    )
    for _ in range(2):
        writer.gap(again)
    writer.close()
    launches = [(1, False), (9, True)]  # The second is of a kernel that is not in the recording.
    running = [
        InFlight(graph=GraphId(0), direction=Direction.FORWARD, nth=n, call=3, checking=checking)
        for n, checking in launches
    ]
    finalize(writer.path, Program(exit=0), in_flight=running)
    return Reader(writer.path)


def test_the_report_is_the_contract(recording: Reader) -> None:
    report = as_json(recording)
    jsonschema.validate(report, report_schema())
    report["torch"], report["torchsan"] = "2.13.0+cpu", "0.1.0"
    first, second = report.pop("findings")
    graph = {"id": 0, "direction": "forward"}
    assert report.pop("recording") == str(recording.path)
    assert report.pop("options")["check"] == ["values", "stages", "metadata", "memory", "cache"]
    assert [(k["graph"], k["name"], k["ops"]) for k in report.pop("kernels")] == [
        (graph, f"cpp_fused_relu_{n}", ["aten.relu.default"]) for n in range(2)
    ]
    assert report.pop("calls") == [{"graph": graph, "seen": 60, "checked": 2}]
    timing = {"graph": graph, "kernel": "cpp_fused_relu_0", "nth": 0, "launches": 4, "seconds": 1.0, "checks": {}}
    assert report.pop("timings") == [timing]
    assert report.pop("cost") is None
    source = [{"file": "model.py", "line": 12, "code": "x = self.act(x)", "module": "layers.0"}]
    assert report.pop("in_flight") == [
        {"graph": graph, "kernel": "cpp_fused_relu_1", "nth": 1, "call": 3, "checking": False, "source": source},
        {"graph": graph, "kernel": None, "nth": 9, "call": 3, "checking": True, "source": []},
    ]
    assert report == {
        "schema": 2,
        "torchsan": "0.1.0",
        "torch": "2.13.0+cpu",
        "command": ["script.py"],
        "status": "findings",
        "program": {"exit": 0, "signal": None},
        "coverage": {
            "graphs": 1,
            "kernels": 2,
            "buffers": 2,
            "buffers_checked": 1,
            "ops_checked": 0,
            "skipped": [{"what": "buf7", "reason": "too large"}],
            "gaps": [
                {
                    "kind": "recompile",
                    "reason": "size mismatch",
                    "function": "forward",
                    "file": "model.py",
                    "line": 10,
                    "code": "def forward(self, x):",
                    "times": 2,
                }
            ],
        },
    }
    assert first == {
        "id": "F1",
        "kind": "wrong-values",
        "severity": "error",
        "check": "values",
        "stage": "kernel",
        "pass": None,
        "graph": {"id": 0, "direction": "forward"},
        "kernel": "cpp_fused_relu_0",
        "buffer": "buf0",
        "nodes": ["relu"],
        "ops": ["aten.relu.default"],
        "source": [{"file": "model.py", "line": 12, "code": "x = self.act(x)", "module": "layers.0"}],
        "message": "the kernel computes other values than eager",
        "evidence": {"worst": "NaN", "text": "\x1b[31mred\ud800"},
        "call": None,
        "step": None,
        "time": 1_750_000_000.0,
        "fingerprint": fingerprint(finding()),
        "suppressed": None,
    }
    assert set(second) == set(first)
    assert second["graph"] is None
    assert second["source"] == []


def test_the_schema_is_a_schema_and_knows_every_kind() -> None:
    schema = report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$defs"]["finding"]["properties"]["kind"]["enum"] == list(Kind)


@pytest.mark.parametrize("seconds", [1e308, -1.0, math.inf, math.nan])
def test_times_that_no_clock_shows_are_left_out(tmp_path: Path, seconds: float) -> None:
    writer = Writer.create(tmp_path / "run", command=["script.py"])
    writer.graph(graph())
    launch = LaunchTime(nth=0, launches=1, seconds=seconds, bytes_read=0, bytes_written=0)
    times = CallTimes(graph=GraphId(0), direction=Direction.FORWARD, call=0, launches=(launch,))
    writer.event("times", {"times": times})
    writer.close()
    finalize(writer.path, Program(exit=0))
    report = as_json(Reader(writer.path))
    jsonschema.validate(report, report_schema())
    assert report["timings"] == []
