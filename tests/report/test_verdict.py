from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.options import Options
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import CallCount, Direction, GraphId, InFlight, Severity, Skipped
from torchsan.records.suppression import Suppression
from torchsan.report import verdict
from torchsan.report.verdict import idle_suppressions


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


def test_a_program_whose_graphs_run_where_nobody_sees_it_is_not_clean(tmp_path: Path) -> None:
    assert outcome(tmp_path, Program(exit=0), event=("started", {})) == ("incomplete", 4)


def test_a_program_that_runs_other_code_from_a_cache_is_told_what_compiles_anew(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    compiled = graph(kernels=1)
    writer.graph(compiled)
    writer.event("started", {})
    writer.event("calls", CallCount(graph=compiled.id, direction=compiled.direction, seen=3, checked=0))
    writer.close()
    finalize(writer.path, Program(exit=0))
    (reason,) = verdict(Reader(writer.path)).reasons
    assert reason.startswith("the program ran other code, from a compile cache")
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1" in reason


def test_a_program_that_died_of_an_illegal_instruction_is_told_the_remedy(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.close()
    finalize(writer.path, Program(signal=4))
    (reason, *_) = verdict(Reader(writer.path)).reasons
    assert reason.startswith("the program died of SIGILL, an instruction that this processor does not run")
    assert reason.endswith("set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")


def test_what_turned_out_not_to_have_been_checked_is_recorded_at_the_end(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.close()
    finalize(writer.path, Program(exit=0), [Skipped(what="the values check", reason="it misses")])
    recording = Reader(writer.path)
    assert [(s.what, s.reason) for s in recording.coverage().skipped] == [("the values check", "it misses")]
    assert "the values check: it misses" in verdict(recording).reasons


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


def recorded(folder: Path, *suppress: Suppression, severity: Severity = Severity.ERROR) -> Reader:
    writer = Writer.create(folder, command=[], options=Options(suppress=suppress))
    writer.graph(graph(kernels=1))
    writer.finding(finding(severity))
    writer.close()
    finalize(writer.path, OK)
    return Reader(writer.path)


def test_what_is_suppressed_has_no_part_in_the_verdict(tmp_path: Path) -> None:
    known = Suppression(kind="wrong-values", reason="known")
    assert verdict(recorded(tmp_path / "one", known)).status == "clean"
    other = recorded(tmp_path / "two", Suppression(kind="non-finite", reason="known"))
    assert verdict(other).status == "findings"
    assert list(idle_suppressions(other)) == ["a suppression fits no finding of this run: kind non-finite (known)"]


def test_a_suppression_that_has_expired_is_told_and_does_not_count(tmp_path: Path) -> None:
    old = recorded(tmp_path / "run", Suppression(kind="wrong-values", reason="known", expires="2020-01-01"))
    assert verdict(old).status == "findings"
    assert "expired on 2020-01-01" in next(idle_suppressions(old))


def test_nobody_is_told_of_a_baseline_that_is_not_needed(tmp_path: Path) -> None:
    known = Suppression(id="0" * 16, reason="in the baseline", baseline=True)
    assert not list(idle_suppressions(recorded(tmp_path / "run", known)))


def test_findings_can_end_with_another_status(tmp_path: Path) -> None:
    assert verdict(recorded(tmp_path / "one")).exit_as(86) == 86
    assert verdict(recorded(tmp_path / "two", severity=Severity.WARNING)).exit_as(86) == 0


def test_a_crash_names_the_launch_that_was_running(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    writer._drop()
    running = InFlight(graph=GraphId(0), direction=Direction.FORWARD, nth=1, call=4, checking=False)
    finalize(writer.path, Program(signal=11), in_flight=[running])
    reasons = verdict(Reader(writer.path)).reasons
    assert reasons[:2] == (
        "the program died of SIGSEGV",
        "it was running cpp_fused_relu_1 (launch 1 of graph 0 forward, call 4); it computes model.py:12 "
        "x = self.act(x)",
    )


def test_a_crash_outside_of_checked_launches_says_what_to_do(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    writer._drop()
    finalize(writer.path, Program(signal=11))
    assert "`--calls all` checks each" in verdict(Reader(writer.path)).reasons[1]


def test_a_crash_while_torchsan_runs_a_graph_says_so(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    writer._drop()
    whole = InFlight(graph=GraphId(0), direction=Direction.FORWARD, nth=None, call=4, checking=True)
    finalize(writer.path, Program(signal=11), in_flight=[whole])
    assert "running the operators of graph 0 forward (call 4)" in verdict(Reader(writer.path)).reasons[1]
