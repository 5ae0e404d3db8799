from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import Severity
from torchsan.report import verdict


def outcome(
    tmp_path: Path,
    program: Program | None = None,
    severities: tuple[Severity, ...] = (),
    kernels: int | None = 1,
    closed: bool = True,
    event: tuple[str, dict[str, object]] | None = None,
) -> tuple[str, int]:
    writer = Writer.create(tmp_path / "run", command=[])
    if kernels is not None:
        writer.graph(graph(kernels=kernels))
    for severity in severities:
        writer.finding(finding(severity))
    if event is not None:
        writer.event(*event)
    if closed:
        writer.close()
    else:
        writer._drop()
    finalize(writer.path, program)
    result = verdict(Reader(writer.path))
    assert bool(result.reasons) == (result.status == "incomplete" or bool(program and program.status))
    return result.status, result.exit


OK, FAILED, CRASHED = Program(exit=0), Program(exit=7), Program(signal=11)
ERROR, WARNING = (Severity.ERROR,), (Severity.WARNING, Severity.NOTE)


@pytest.mark.parametrize(
    ("program", "severities", "expected"),
    [
        (OK, (), ("clean", 0)),
        (OK, WARNING, ("clean", 0)),
        (OK, ERROR, ("findings", 1)),
        (FAILED, (), ("incomplete", 7)),
        (FAILED, WARNING, ("incomplete", 7)),
        (FAILED, ERROR, ("findings", 1)),
        (CRASHED, (), ("incomplete", 139)),
        (CRASHED, ERROR, ("findings", 1)),
        (None, (), ("clean", 0)),
    ],
)
def test_findings_come_before_the_programs_status(
    tmp_path: Path, program: Program | None, severities: tuple[Severity, ...], expected: tuple[str, int]
) -> None:
    assert outcome(tmp_path, program, severities) == expected


@pytest.mark.parametrize("kernels", [None, 0])
def test_silence_is_not_success(tmp_path: Path, kernels: int | None) -> None:
    assert outcome(tmp_path, OK, kernels=kernels) == ("incomplete", 4)


@pytest.mark.parametrize("program", [OK, None])
def test_a_session_that_did_not_end_is_incomplete(tmp_path: Path, program: Program | None) -> None:
    assert outcome(tmp_path, program, closed=False) == ("incomplete", 4)


def test_a_recording_with_gaps_is_incomplete(tmp_path: Path) -> None:
    assert outcome(tmp_path, OK, event=("degraded", {"reason": "disk full"})) == ("incomplete", 4)


@pytest.mark.parametrize("status", [2, 3])
def test_torchsans_own_failure_has_its_status(tmp_path: Path, status: int) -> None:
    event: tuple[str, dict[str, object]] = ("failed", {"message": "no", "status": status, "slug": "x"})
    assert outcome(tmp_path, Program(exit=status), event=event) == ("incomplete", status)
