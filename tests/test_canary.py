"""The canary tries the checks once, in a process that leaves nothing behind, and what it found is used from then on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest
import torch

import torchsan
from tests.samples import finding
from torchsan import canary
from torchsan.canary import PLANTED, Beside, Trial, _Outcome, _why_not
from torchsan.recording import Reader
from torchsan.records import Check, Kind, Severity
from torchsan.report.verdict import verdict
from torchsan.torch_internals.tried import SWITCH, Tried, keep, last_try


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)


def test_every_check_finds_its_planted_fault_here() -> None:
    tried = canary.try_checks()
    assert tried.failures == {}
    assert tried.seconds > 0
    assert last_try() is not None
    assert last_try() == Tried(seconds=round(tried.seconds, 2))


def outcome(*checks: Check, planted: bool = True) -> _Outcome:
    result = _Outcome()
    result.planted = set(PLANTED) if planted else set()
    result.errors = [finding(check=check, kind=PLANTED[check], severity=Severity.ERROR) for check in checks]
    return result


@pytest.mark.parametrize(
    ("clean", "wrong", "reason"),
    [
        (outcome(), outcome(*PLANTED), None),
        (outcome(), outcome(Check.VALUES, Check.METADATA, Check.STAGES), "does not find the uninitialized-read"),
        (
            outcome(Check.MEMORY),
            outcome(*PLANTED),
            "finds uninitialized-read in a program of the canary's that is right",
        ),
        (outcome(), outcome(*PLANTED, planted=False), "could not plant a fault"),
        (outcome(Check.VALUES), outcome(*PLANTED), None),
    ],
)
def test_a_check_that_misses_its_fault_or_dislikes_the_twin_fails(
    clean: _Outcome, wrong: _Outcome, reason: str | None
) -> None:
    why = _why_not(Check.MEMORY, clean, wrong)
    assert why is None if reason is None else reason in (why or "")


def test_another_kind_than_the_planted_one_does_not_count() -> None:
    wrong = outcome()
    wrong.errors = [finding(check=Check.MEMORY, kind=Kind.LEAKED_BUFFER, severity=Severity.ERROR)]
    assert "does not find" in (_why_not(Check.MEMORY, outcome(), wrong) or "")


def test_a_check_that_failed_is_off_and_the_others_work(tmp_path: Path) -> None:
    keep(Tried(failures={"values": "it misses what was planted"}))
    with torchsan.session(check=("values", "memory"), out=tmp_path / "run") as run:
        torch.compile(lambda x: x.sin())(torch.ones(4))
    assert run.coverage.buffers_checked == 1, "the memory check looked at it"
    outcome = verdict(Reader(tmp_path / "run"))
    assert (outcome.status, outcome.exit) == ("incomplete", 4)
    (reason,) = outcome.reasons
    assert reason == ("the values check: it misses what was planted (`torchsan doctor --canary` tries again)")


def test_a_trial_that_does_not_end_well_fails_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    tried = canary.try_checks()
    assert set(tried.failures) == set(PLANTED)
    assert all("ended with status 1" in reason for reason in tried.failures.values())
    assert last_try() is None, "a full disk, say, must not turn off the checks of runs to come"


def test_beside_a_program_it_gets_no_time_after_the_end() -> None:
    beside = Beside(["values"])
    process = psutil.Process(beside._trial._process.pid)  # type: ignore[union-attr]  # there is one
    start = time.monotonic()
    assert beside.finish() == []
    assert time.monotonic() - start < 5
    assert not process.is_running()
    assert last_try() == Tried(unfinished=1)
    for _ in range(5):
        Beside(["values"]).close()
    assert last_try() == Tried(unfinished=3), "then it is left to torchsan doctor --canary"


def test_nothing_is_started_where_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "Trial", lambda gently: pytest.fail("started"))
    Beside([]).close()
    monkeypatch.setenv(SWITCH, "off")
    Beside(["values"]).close()
    monkeypatch.delenv(SWITCH)
    assert last_try() is None
    keep(Tried())
    Beside(["values"]).close()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    Beside(["values"]).close()


def test_what_it_finds_beside_a_program_makes_the_run_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Trial):
        def __init__(self, *, gently: bool = False) -> None:
            assert gently

        def answer(self, within: float) -> Tried | str:
            return Tried(failures={"memory": "it misses"})

    monkeypatch.setattr(canary, "Trial", Ended)
    beside = Beside(["values", "memory"])
    assert [(s.what, s.reason) for s in beside.finish()] == [("the memory check", "it misses")]
    assert last_try() == Tried(failures={"memory": "it misses"})


def test_an_untested_pytorch_that_was_not_tried_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "check_version", lambda: "not tested")
    monkeypatch.setattr(canary, "_BESIDE", 0.0)
    (skipped,) = Beside(["values"]).finish()
    assert skipped.what == "PyTorch"
    assert "torchsan doctor --canary" in skipped.reason
    keep(Tried())
    assert Beside(["values"]).finish() == []


def test_a_run_with_a_pytorch_that_is_not_known_says_so_once(tmp_path: Path) -> None:
    """A PyTorch that calls itself something else, which is all that tells a version from another."""
    information = tmp_path / "site" / "torch-2.99.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.99.0\n")
    (tmp_path / "program.py").write_text(
        "import torch\nprint(torch.compile(lambda x: x + 1)(torch.ones(2)).tolist())\n"
    )
    words = [sys.executable, "-m", "torchsan", "run", "--check", "values", "--out", "run", "program.py"]
    paths = [str(tmp_path / "site"), str(Path(torchsan.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), SWITCH: "off"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.stdout == "[2.0, 2.0]\n"
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("not tested with this version of PyTorch, 2.99.0") == 1
