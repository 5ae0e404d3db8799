"""Reports of recordings that were made up, against gold files: nothing in them depends on the machine."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diff.made_up import fix_manifest
from tests.report.golden import assert_golden, assert_golden_json
from tests.samples import SOURCE, finding, graph
from torchsan.cli.main import main
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import Direction, Severity
from torchsan.report.json_report import as_json
from torchsan.report.terminal import SCREEN, print_report


def memory(writer: Writer, id: int, direction: Direction, peak: int) -> None:
    by_source = [{"file": "model.py", "line": n, "module": "layers.0", "bytes": peak // n} for n in (1, 2, 3, 4)]
    figures = {"given": 512, "allocated": 2 * peak, "planned_peak": peak, "peak": peak, "saved": 0, "returned": 0}
    place = {"graph": id, "direction": str(direction), "call": 0, "by_source": by_source}
    writer.event("memory", {**place, **figures})


def clean(writer: Writer) -> Program | None:
    writer.graph(graph())
    writer.checked(graph().id, Direction.FORWARD, ["buf0", "buf1"])
    memory(writer, 0, Direction.FORWARD, 4096)
    return Program(exit=0)


def findings(writer: Writer) -> Program | None:
    clean(writer)
    writer.finding(finding(evidence={"text": ["at [0, 3]: compiled 0.5, eager 1, float64 1"], "bad": 1}))
    writer.finding(finding(Severity.WARNING, kernel=None, buffer=None, message="two lines\nof message"))
    writer.skipped("buf7", "too large")
    return Program(exit=0)


def crashed(writer: Writer) -> Program | None:
    writer.graph(graph(kernels=1))
    return Program(signal=11)


def big(writer: Writer) -> Program | None:
    """2,000 kernels in 40 graphs, 30 findings with long evidence, 12 reasons why something was not checked."""
    for n in range(20):
        for direction in (Direction.FORWARD, Direction.BACKWARD):
            writer.graph(graph(n, direction, kernels=50))
            memory(writer, n, direction, 1 << (10 + n))
    for n in range(30):
        writer.finding(finding(message=f"finding number {n}", source=SOURCE * (n + 1), evidence={"text": ["…"] * 20}))
    for n in range(12):
        for m in range(8):
            writer.skipped(f"buf{m}", f"reason {n}")
    return Program(exit=0)


Make = Callable[[Writer], Program | None]
MADE: dict[str, Make] = {f.__name__: f for f in (clean, findings, crashed, big)}


@pytest.fixture
def recording(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    writer = Writer.create("run", command=["script.py"])
    program = MADE[request.param](writer)
    writer.close()
    finalize(writer.path, program)
    fix_manifest(writer.path)
    return Reader(writer.path)


def shown(recording: Reader, everything: bool = False) -> str:
    stream = io.StringIO()
    print_report(recording, stream, everything=everything)
    return stream.getvalue()


@pytest.mark.parametrize("recording", MADE, indirect=True)
def test_the_terminal(recording: Reader, request: pytest.FixtureRequest) -> None:
    text = shown(recording)
    assert_golden(f"{request.node.callspec.params['recording']}.txt", text)
    assert len(text.splitlines()) <= SCREEN


@pytest.mark.parametrize("recording", ["clean", "findings", "crashed"], indirect=True)
def test_the_json(recording: Reader, request: pytest.FixtureRequest) -> None:
    report = as_json(recording)
    assert report["recording"] == str(recording.path)
    report["recording"] = "run"
    assert_golden_json(f"{request.node.callspec.params['recording']}.json", report)


@pytest.mark.parametrize("recording", ["big"], indirect=True)
def test_a_big_run_is_reported_at_once_and_whole_when_asked_for(recording: Reader) -> None:
    start = time.monotonic()
    Reader(recording.path)
    shown(recording)
    assert time.monotonic() - start < 5
    whole = shown(recording, everything=True)
    assert whole.count("cpp_fused_relu_") >= 2000
    assert all(f"finding number {n}" in whole for n in range(30))
    assert all(f"reason {n}" in whole for n in range(12))


@pytest.mark.parametrize("recording", ["findings"], indirect=True)
def test_details_are_shown_on_request(recording: Reader, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--finding", "f2", "run"]) == 1
    assert capfd.readouterr().out.startswith("F2: warning: wrong-values\n    two lines\n    of message\n")
    assert main(["report", "--kernels", "*_1", "run"]) == 1
    out = capfd.readouterr().out
    assert "cpp_fused_relu_1: graph 0 forward, launch 1, fused" in out
    assert "    writes:  buf1" in out
    assert "cpp_fused_relu_0" not in out


@pytest.mark.parametrize("recording", ["findings"], indirect=True)
@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--finding", "F9"], "no finding F9 in"), (["--kernels", "x*"], "kernels: cpp_fused_relu_0, cpp_fused_relu_1")],
)
def test_details_that_are_not_there(
    recording: Reader, capfd: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["report", *flags, "run"]) == 2
    assert message in capfd.readouterr().err
