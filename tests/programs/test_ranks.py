"""Real jobs of several processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from torchsan.recording import Reader
from torchsan.report.json_report import report_schema
from torchsan.report.ranks import open_ranks

TRAIN = str(Path(__file__).with_name("ranks_train.py"))


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parents[2] / "src")])))
    monkeypatch.delenv("TORCHSAN_OPTIONS", raising=False)


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600)


def launcher(processes: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]


def report(place: str) -> tuple[int, dict[str, Any]]:
    done = python("-m", "torchsan", "report", "--json", "-", place)
    value = json.loads(done.stdout)
    jsonschema.validate(value, report_schema())
    return done.returncode, value


def test_each_rank_records_for_itself_and_the_report_names_the_one_that_drifts() -> None:
    torchsan = ["-m", "torchsan", "run", "--check", "values"]
    done = python(*launcher(2), *torchsan, TRAIN, "ddp", "--drift", "1:2", "--steps", "4")
    assert done.returncode == 0, done.stderr  # What torchsan finds does not end a job.
    assert done.stdout == "trained\n"
    (place,) = Path("torchsan-runs").iterdir()  # No --out: they agree on a folder without a word.
    status, value = report(str(place))
    assert status == 1
    (found,) = value["findings"]
    assert found["kind"] == "wrong-values"
    assert "parameter last.bias differs before step 2 on rank 1" in found["message"]
    assert found["evidence"]["ranks"] == [1]


def job(processes: int, *words: str, check: str = "values,metadata") -> tuple[int, str]:
    torchsan = ["-m", "torchsan", "run", "--check", check, "--out", "runs"]
    done = python(*torchsan, *launcher(processes), TRAIN, *words)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_parameter_changed_on_one_of_four_ranks_is_named_and_the_healthy_twin_has_no_finding() -> None:
    status, text = job(4, "ddp", "--compile", "--drift", "2:3")
    assert status == 1, text
    assert "F1: error: wrong-values, rank 2\n    parameter last.bias differs before step 3 on rank 2" in text
    os.rename("runs", "drifted")
    status, text = job(4, "ddp", "--compile")
    assert status == 0, text
    assert "torchsan: clean: no findings on 4 ranks" in text
    assert "copies compared: 4 parameters and their gradients over 5 optimizer steps" in text


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_fsdp_is_clean_and_what_is_sharded_has_no_copies(processes: int) -> None:
    status, text = job(processes, "fsdp", "--compile", "--steps", "3", check="values,memory")
    assert status == 0, text
    assert "copies compared: none" in text
    skipped = Reader("runs/rank-0").coverage().skipped
    assert any("no other rank holds a copy" in s.reason for s in skipped)


@pytest.mark.slow
def test_shards_that_are_replicated_are_copies() -> None:
    status, text = job(4, "hsdp", "--steps", "3", "--drift", "3:1", check="values")
    assert status == 1, text
    assert "parameter last.bias differs before step 1 on rank 3" in text
    ranks = open_ranks("runs")
    assert ranks.drift is not None
    assert set(ranks.drift.evidence["digests"]) == {"1", "3"}  # Those that hold this shard.


@pytest.mark.slow
def test_a_gradient_that_differs_after_it_was_reduced_is_named() -> None:
    status, text = job(4, "ddp", "--gradient", "1:2", check="values")
    assert status == 1, text
    assert "the gradient of first.weight differs in step 2 on rank 1" in text


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_what_it_had_and_so_do_the_others() -> None:
    status, text = job(2, "ddp", "--kill", "1:2", check="values")
    assert status == 1, text  # The launcher's own, which is 1 whatever a rank died of.
    assert "torchsan: incomplete: no findings on 2 ranks" in text
    ranks = open_ranks("runs")
    assert ranks.readers[1].program.signal == 9
    assert len(ranks.readers[1].events("replica-step")) == 2
    assert len(ranks.readers[0].events("replica-step")) >= 2
    assert ranks.drift is None
    assert any("rank 1: the program died of SIGKILL" in reason for reason in ranks.verdict.reasons)


@pytest.mark.slow
def test_a_rank_whose_processor_flips_bits_is_named_under_a_budget_and_its_healthy_twins_are_not() -> None:
    torchsan = ["-m", "torchsan", "run", "--budget", "50%", "--out", "runs"]
    done = python(*torchsan, *launcher(4), TRAIN, "plain", "--compile", "--flip", "2:20", "--steps", "1500")
    assert done.returncode == 1, done.stderr
    status, value = report("runs")
    assert status == 1
    found = [f for f in value["findings"] if f["severity"] == "error"]
    assert found
    for each in found:
        assert each["kind"] == "nondeterministic"
        assert each["evidence"]["hardware"]["host"]
        assert each["evidence"]["ranks"] == [2]
