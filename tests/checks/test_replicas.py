"""The judge and the report over ranks, on recordings that no rank had to make."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.samples import finding, graph
from torchsan.checks.replicas import RankSteps, drift, read_steps
from torchsan.cli.main import main
from torchsan.errors import RecordingError
from torchsan.recording import Program, Rank, Writer, current_rank, finalize, rank_folders
from torchsan.records import Kind, ReplicaRecord, Severity, StepRecord
from torchsan.report.json_report import report_schema
from torchsan.report.ranks import open_ranks, print_ranks
from torchsan.report.verdict import Status

NAMES = ("weight", "bias")


def job(world: int, steps: int = 4, **changes: tuple[int, int, int]) -> dict[int, RankSteps]:
    """A healthy job, in which `before`, `gradients` or `parameters` of (rank, step, tensor) are other than elsewhere.

    What is changed before a step stays changed; the others only show.
    """
    everyone = tuple(range(world))
    found = {}
    for rank in everyone:
        replicas = {0: tuple(ReplicaRecord(name=name, ranks=everyone) for name in NAMES)}
        records = {}
        for step in range(steps):
            digests: dict[str, list[str]] = {
                "before": [f"p{t}.0" if step == 0 else "" for t in range(2)],
                "gradients": [f"g{t}.{step}" for t in range(2)],
                "parameters": [f"p{t}.{step + 1}" for t in range(2)],
            }
            for what, (odd, when, tensor) in changes.items():
                if (odd, when) == (rank, step):
                    digests[what][tensor] = f"{what} of {rank}"
            records[step, 0] = StepRecord(
                optimizer=0, step=step, **{k: tuple(v) if any(v) else () for k, v in digests.items()}
            )
        found[rank] = RankSteps(replicas=replicas, steps=records)
    return found


def test_a_healthy_job_has_no_finding() -> None:
    assert drift(job(4)) is None
    assert drift(job(1)) is None
    assert drift({}) is None


@pytest.mark.parametrize(
    ("phase", "kind", "words"),
    [
        ("before", Kind.WRONG_VALUES, "parameter bias differs before step 3 on rank 2; it was equal after step 2"),
        ("gradients", Kind.WRONG_VALUES, "the gradient of bias differs in step 3 on rank 2; the parameters were equal"),
        ("parameters", Kind.NONDETERMINISTIC, "parameter bias differs after step 3 on rank 2; it was equal before"),
    ],
)
def test_drift_is_named_with_rank_step_and_tensor(phase: str, kind: Kind, words: str) -> None:
    found = drift(job(4, steps=6, **{phase: (2, 3, 1)}))
    assert found is not None
    assert found.kind is kind
    assert words in found.message
    assert found.evidence["ranks"] == [2]
    assert (found.evidence["step"], found.evidence["tensor"]) == (3, "bias")


def test_of_two_ranks_the_one_that_saw_a_change_is_named_and_nobody_where_both_did_their_part() -> None:
    changed = drift(job(2, before=(1, 2, 0)))
    assert changed is not None
    assert changed.evidence["ranks"] == [1]
    computed = drift(job(2, parameters=(1, 2, 0)))
    assert computed is not None
    assert computed.evidence["ranks"] == []
    assert "between the ranks" in computed.message


def test_the_first_difference_counts_also_where_copies_begin_unequal() -> None:
    found = drift(job(3, before=(2, 0, 0), gradients=(1, 1, 0)))
    assert found is not None
    assert (found.evidence["step"], found.evidence["what"], found.evidence["ranks"]) == (0, "before", [2])


def test_a_rank_that_was_killed_is_compared_up_to_then() -> None:
    ranks = job(3, steps=5, gradients=(1, 4, 0))
    ranks[2] = RankSteps(replicas=ranks[2].replicas, steps={k: v for k, v in ranks[2].steps.items() if k[0] < 2})
    found = drift(ranks)
    assert found is not None
    assert set(found.evidence["digests"]) == {"0", "1"}


def test_ranks_that_hold_other_parts_are_not_compared() -> None:
    ranks = job(2, parameters=(1, 1, 0))
    apart = {
        rank: RankSteps(
            replicas={0: tuple(ReplicaRecord(name=n, ranks=(rank, rank + 2)) for n in NAMES)}, steps=r.steps
        )
        for rank, r in ranks.items()
    }
    assert drift(apart) is None


def test_steps_that_do_not_fit_their_optimizer_are_refused() -> None:
    step = {"optimizer": 0, "step": 0, "before": [], "gradients": ["a"], "parameters": ["a"]}
    with pytest.raises(RecordingError, match="other digests"):
        read_steps([], [{"step": step}])
    with pytest.raises(RecordingError, match="malformed"):
        read_steps([], [{"step": step | {"step": "x"}}])


def test_a_rank_is_who_the_launcher_says() -> None:
    assert current_rank({}) is None
    assert current_rank({"RANK": "x", "WORLD_SIZE": "2"}) is None
    assert current_rank({"RANK": "2", "WORLD_SIZE": "2"}) is None
    rank = current_rank({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "3"})
    assert rank == Rank(rank=1, world=2, restart=3)
    assert rank.folder("out") == "out/rank-1-restart-3"
    alone = Rank(rank=0, world=1).folder(None)
    assert Path(alone).parent == Path(Rank(rank=1, world=2).folder(None)).parent  # All ranks of a launcher agree.


def record(place: Path, rank: int, *, world: int = 2, steps: RankSteps | None = None, **what: Any) -> None:
    folder = f"rank-{rank}" + (f"-restart-{what['restart']}" if what.get("restart") else "")
    writer = Writer.create(place / folder, command=["train.py"])
    writer.event("rank", {"rank": Rank(rank=rank, world=world)})
    writer.graph(graph())
    for found in what.get("findings", ()):
        writer.finding(found)
    writer.skipped("buf7", "of no matter")
    if steps is not None:
        writer.event("replicas", {"optimizer": 0, "replicas": steps.replicas[0]})
        for step in steps.steps.values():
            writer.event("replica-step", {"step": step})
    writer.close()
    finalize(writer.path, what.get("program", Program(exit=0)))


def said(place: Path) -> str:
    stream = StringIO()
    print_ranks(open_ranks(place), stream)
    return stream.getvalue()


def test_the_report_over_healthy_ranks_is_clean(tmp_path: Path) -> None:
    for rank, steps in job(2).items():
        record(tmp_path, rank, steps=steps)
    ranks = open_ranks(tmp_path)
    assert (ranks.verdict.status, ranks.verdict.exit) == (Status.CLEAN, 0)
    text = said(tmp_path)
    assert "rank 1: clean: 0 of 2 kernels, 0 of 2 buffers" in text
    assert "copies compared: 2 parameters and their gradients over 4 optimizer steps" in text


def test_the_same_finding_of_several_ranks_is_shown_once_and_drift_first(tmp_path: Path) -> None:
    for rank, steps in job(3, before=(1, 2, 0)).items():
        findings = [finding(), *([finding(Severity.WARNING, kernel="other")] if rank == 2 else [])]
        record(tmp_path, rank, world=3, steps=steps, findings=findings)
    text = said(tmp_path)
    assert "F1: error: wrong-values, rank 1\n    parameter weight differs before step 2 on rank 1" in text
    assert "F2: error: wrong-values, ranks 0, 1, 2" in text
    assert "F3: warning: wrong-values, rank 2" in text
    assert open_ranks(tmp_path).verdict.exit == 1


def test_the_command_reports_ranks_and_writes_one_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, steps in job(2, gradients=(1, 1, 1)).items():
        record(tmp_path / "runs", rank, steps=steps)
    assert main(["report", "--json", str(tmp_path / "r.json"), str(tmp_path / "runs")]) == 1
    assert "the gradient of bias differs in step 1" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(report, report_schema())
    assert report["findings"][0]["evidence"]["ranks"] == [0, 1]
    assert report["coverage"]["kernels"] == 4
    assert report["coverage"]["skipped"][0]["what"] == "rank 0: buf7"


def test_a_missing_a_killed_and_a_damaged_rank_are_said(tmp_path: Path) -> None:
    record(tmp_path, 0, world=4)
    record(tmp_path, 1, world=4, program=Program(signal=9))
    (tmp_path / "rank-2").mkdir()
    ranks = open_ranks(tmp_path)
    assert (ranks.verdict.status, ranks.verdict.exit) == (Status.INCOMPLETE, 137)
    reasons = " | ".join(ranks.verdict.reasons)
    assert "rank 1: the program died of SIGKILL" in reasons
    assert "rank 2: no recording at" in reasons
    assert "rank 3 left no recording" in reasons


def test_a_job_that_was_started_again_is_reported_from_its_last_start(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path, rank, program=Program(signal=9))
        record(tmp_path, rank, restart=1)
    assert "started again 1 time" in said(tmp_path)
    assert open_ranks(tmp_path).verdict.exit == 0


def test_only_folders_of_ranks_are_taken_for_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank-1").mkdir()
    (tmp_path / "rank-1x").mkdir()
    (tmp_path / "rank-2").write_text("")
    (tmp_path / "rank-3").symlink_to(tmp_path / "rank-1")
    assert list(rank_folders(tmp_path)) == [(0, 1)]
    with pytest.raises(RecordingError, match="no rank left a recording"):
        open_ranks(tmp_path)
