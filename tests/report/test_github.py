"""Annotations and the summary of a job of GitHub Actions."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.options import Options
from torchsan.recording import Reader, Writer
from torchsan.records import Finding, Severity, SourceLine
from torchsan.records.suppression import Suppression
from torchsan.report.findings import in_github_actions
from torchsan.report.github import tell_github, workflow_commands
from torchsan.report.terminal import print_report


def recording(folder: Path, *findings: Finding, suppress: tuple[Suppression, ...] = ()) -> Reader:
    writer = Writer.create(folder, command=["train.py"], options=Options(suppress=suppress))
    writer.graph(graph())
    for f in findings:
        writer.finding(f)
    writer.close()
    return Reader(folder)


def test_each_finding_is_annotated_at_its_line(tmp_path: Path) -> None:
    lines = (SourceLine(file="/repo/src/a,b.py", line=7, code=""),)
    findings = finding(source=lines), finding(Severity.WARNING), finding(Severity.NOTE, source=())
    said = "the kernel computes other values than eager"
    assert list(workflow_commands(recording(tmp_path / "run", *findings), "/repo")) == [
        f"::error file=src/a%2Cb.py,line=7,title=torchsan F1%3A wrong-values::{said}",
        f"::warning file=model.py,line=12,title=torchsan F2%3A wrong-values::{said}",
        f"::notice title=torchsan F3%3A wrong-values::{said}",
    ]


def test_a_recording_cannot_write_commands_of_its_own(tmp_path: Path) -> None:
    found = recording(tmp_path / "run", finding(message="50 % off\n::set-output name=x::y\r::error::z"))
    (line,) = workflow_commands(found)
    assert line.endswith("::50 %25 off ::set-output name=x::y ::error::z")


def test_what_is_suppressed_is_not_annotated(tmp_path: Path) -> None:
    found = recording(tmp_path / "run", finding(), suppress=(Suppression(kind="wrong-values", reason="known"),))
    assert not [line for line in workflow_commands(found) if line.startswith("::error")]


def test_the_report_is_added_to_the_summary(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    stream = io.StringIO()
    tell_github(recording(tmp_path / "run", finding()), stream, {"GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text().startswith("before\n### torchsan: findings: 1 error")
    assert stream.getvalue().startswith("::error ")


def test_a_job_is_known_by_its_variable() -> None:
    assert in_github_actions({"GITHUB_ACTIONS": "true"})
    assert not in_github_actions({"GITHUB_ACTIONS": "false"})
    assert not in_github_actions({})


HOSTILE = "::set-output name=x::y", "  ::stop-commands::all", "say ##[add-mask]e", "x\n::error::z"


def test_no_line_of_the_report_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tuple(SourceLine(file=text, line=1, code=text, module=text) for text in HOSTILE)
    evidence = {"text": list(HOSTILE)}
    found = recording(tmp_path / "run", finding(message="\n".join(HOSTILE), source=lines, evidence=evidence))
    for job in ("true", "false"):
        monkeypatch.setenv("GITHUB_ACTIONS", job)
        stream = io.StringIO()
        print_report(found, stream, everything=True)
        commands = [line for line in stream.getvalue().splitlines() if line.lstrip().startswith("::") or "##[" in line]
        assert bool(commands) == (job == "false"), commands  # Elsewhere it is text as any other.
