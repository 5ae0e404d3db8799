"""A run that is shown while it goes on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.cli.main import main
from torchsan.errors import RecordingError
from torchsan.recording import Program, Writer, finalize
from torchsan.records import Severity
from torchsan.report.follow import follow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_to_its_end(folder: Path, stream: io.StringIO) -> int:
    """Follow a run that makes one more step each time that somebody looks."""
    writer = Writer.create(folder, command=["train.py"])

    def end() -> None:
        writer.close()
        finalize(folder, Program(exit=0))

    second = finding(kernel="cpp_fused_relu_1")
    steps: list[Callable[[], object]] = [
        lambda: writer.graph(graph()),
        lambda: writer.finding(finding()),
        lambda: writer.finding(second),
        end,
    ]

    def step(seconds: float) -> None:
        steps.pop(0)()

    return follow(folder, stream, sleep=step).exit


def test_findings_are_shown_when_they_are_made(tmp_path: Path) -> None:
    stream = io.StringIO()
    assert run_to_its_end(tmp_path / "run", stream) == 1
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith("F")] == ["F1: error: wrong-values", "F2: error: wrong-values"]
    states = [line for line in lines if line.startswith("torchsan: running")]
    assert "0 kernels in 0 graphs" in states[0]
    assert "of 2 kernels, " in states[1]
    assert lines[-1].startswith("torchsan: ended after 0:00:0")
    assert lines[-1].endswith("2 errors")


def test_the_end_is_waited_for_that_is_recorded_after_the_program_has_closed_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = Writer.create(folder, command=["train.py"])
    writer.event("started", {})
    writer.finding(finding(severity=Severity.NOTE))
    steps: list[Callable[[], object]] = [writer.close, lambda: finalize(folder, Program(exit=7))]

    def step(seconds: float) -> None:
        steps.pop(0)()

    stream = io.StringIO()
    assert follow(folder, stream, sleep=step).exit == 7
    assert not steps
    assert stream.getvalue().count("ended after") == 1


def test_on_a_terminal_the_last_line_is_written_anew(tmp_path: Path) -> None:
    stream = Terminal()
    assert run_to_its_end(tmp_path / "run", stream) == 1
    assert stream.getvalue().count("\r\x1b[K") == 4
    assert stream.getvalue().endswith("2 errors\n")


def test_a_run_that_was_killed_is_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer.create(tmp_path / "run", command=["train.py"])
    writer.finding(finding())
    writer._drop()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["pid"] == os.getpid()
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {"pid": int(gone.stdout)}))
    assert main(["report", "--follow", str(tmp_path / "run")]) == 1
    assert "1 error" in capsys.readouterr().out


def test_there_must_be_one_recording(tmp_path: Path) -> None:
    with pytest.raises(RecordingError):
        follow(tmp_path / "nothing", io.StringIO())
    assert main(["report", "--follow", "a", "b"]) == 2
    assert main(["report", "--follow", "file:///a"]) == 2
