"""From a recording to a folder that shows one finding by itself, through the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types
import pytest
import torch

import torchsan
from tests.machine import CACHE
from tests.planted.faults import FAULTS, planted
from tests.repro.commands import ROOT, command, environment, plain, verified, with_torch_alone

CASES = ROOT / "tests" / "cases"
LOAD = ("--load", "tests.repro.planting")


def record(name: str, folder: Path) -> Path:
    """Run the program of a planted fault here, and return the recording."""
    fault = next(f for f in FAULTS if f.name == name)
    torch.manual_seed(0)
    with torchsan.session(check="values", out=folder / "run"), planted(fault):
        fault.program()
    return folder / "run"


def run_case(name: str, folder: Path) -> Path:
    command(folder, "run", "--quiet", "--out", "run", str(CASES / name))
    return folder / "run"


def test_a_wrong_kernel_becomes_a_script_of_one_operator(tmp_path: Path) -> None:
    fault = "another_function"
    record(fault, tmp_path)
    done = command(tmp_path, "repro", "run", "--out", "out", *LOAD, fault=fault)
    text = verified(done, tmp_path / "out")
    assert re.findall(r"= aten\.(\w+)\.", text) == ["sin"]
    assert len(text.splitlines()) <= 40
    assert "trial 1:" in done.stderr


@pytest.mark.slow
def test_the_script_fails_by_itself_in_another_folder_and_passes_eagerly(tmp_path: Path) -> None:
    fault = "a_sum_that_starts_at_one"
    record(fault, tmp_path)
    out = tmp_path / "out"
    verified(command(tmp_path, "repro", "run", "--out", "out", *LOAD, fault=fault), out)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "repro.py").write_text((out / "repro.py").read_text())
    assert plain(elsewhere, fault=fault) == 1
    assert plain(elsewhere, "eager", fault=fault) == 0
    assert with_torch_alone(elsewhere, fault) == 1


@pytest.mark.slow
def test_one_that_needs_its_recorded_values_keeps_them(tmp_path: Path) -> None:
    fault = "one_value_only"
    record(fault, tmp_path)
    text = verified(command(tmp_path, "repro", "run", "--out", "out", *LOAD, fault=fault), tmp_path / "out")
    assert "randn" not in text
    assert "0.5" in text or (tmp_path / "out" / "data.safetensors").exists()


@pytest.mark.slow
def test_with_a_store_the_tensors_come_from_it(tmp_path: Path) -> None:
    fault = "one_value_only"
    record(fault, tmp_path)
    done = command(tmp_path, "repro", "run", "--out", "out", "--with-store", "--time-limit", "40", *LOAD, fault=fault)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / "data.safetensors").exists()


@pytest.mark.slow
def test_one_that_needs_its_sizes_keeps_them(tmp_path: Path) -> None:
    fault = "a_loop_that_stops_short"
    record(fault, tmp_path)
    text = verified(command(tmp_path, "repro", "run", "--out", "out", *LOAD, fault=fault), tmp_path / "out")
    assert "(32, 64)" in text


@pytest.mark.slow
def test_one_that_needs_two_calls_makes_them(tmp_path: Path) -> None:
    run_case("second_call_aliases.py", tmp_path)
    text = verified(command(tmp_path, "repro", "run", "--out", "out"), tmp_path / "out")
    assert "compiled(*earlier())" in text
    assert with_torch_alone(tmp_path / "out") == 1
    assert plain(tmp_path / "out") == 1
    assert plain(tmp_path / "out", "eager") == 0


@pytest.mark.slow
def test_a_pass_that_changes_the_meaning(tmp_path: Path) -> None:
    run_case("attention_over_queries.py", tmp_path)
    text = verified(command(tmp_path, "repro", "run", "--out", "out"), tmp_path / "out")
    assert text.count("= aten.") == 5
    assert "randn" in text


@pytest.mark.slow
def test_one_that_aborts_the_process_or_worse(tmp_path: Path) -> None:
    run_case("heap_overflow.py", tmp_path)
    done = command(tmp_path, "repro", "run", "--out", "out", "--time-limit", "400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out-of-bounds-write" in (tmp_path / "out" / "README.md").read_text()
    assert plain(tmp_path / "out") == 1
    assert plain(tmp_path / "out", "eager") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["custom_op_wrong_fake_dtype.py", "custom_op_hidden_alias.py"])
def test_an_operator_of_the_users_comes_with_its_module(name: str, tmp_path: Path) -> None:
    run_case(name, tmp_path)
    assert command(tmp_path, "repro", "run", "--out", "out").returncode == 2
    done = command(tmp_path, "repro", "run", "--out", "out", "--load", str(CASES / name))
    verified(done, tmp_path / "out")
    assert (tmp_path / "out" / name).exists()
    assert plain(tmp_path / "out") == 1


@pytest.mark.slow
def test_run_makes_one_for_the_first_error(tmp_path: Path) -> None:
    done = command(
        tmp_path, "run", "--repro", "--check", "stages", "--out", "run", str(CASES / "second_call_aliases.py")
    )
    assert done.returncode == 1
    assert "verified" in done.stderr
    assert (tmp_path / "run-repro" / "repro.py").exists()


@pytest.mark.slow
def test_what_does_not_reproduce_by_itself_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    record("another_function", tmp_path)
    done = command(tmp_path, "repro", "run", "--out", "out")  # Without the planted fault there is nothing wrong.
    assert done.returncode == 4
    assert "NOT verified" in done.stdout
    assert "**Not verified**" in (tmp_path / "out" / "README.md").read_text()
    # What it says to do next: the same again, with the module, neither from a cache nor by what came of the trials.
    again = command(tmp_path, "repro", "run", "--out", "out", *LOAD, fault="another_function")
    assert "earlier attempt" not in again.stderr
    verified(again, tmp_path / "out")


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_and_the_same_command_goes_on(tmp_path: Path) -> None:
    fault = "a_relative_error_of_a_thousandth"
    record(fault, tmp_path)
    line = [sys.executable, "-m", "torchsan", "repro", "run", "--out", "out", *LOAD]
    with subprocess.Popen(line, cwd=tmp_path, env=environment(fault), stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        for text in first.stderr:
            if "trial 2:" in text:
                break
        time.sleep(0.1)
        first.send_signal(signal.SIGINT)
        first.stderr.read()
    assert (tmp_path / "out" / "repro.py").exists()
    state = json.loads((tmp_path / "out" / "state.json").read_text())
    assert state["trials"], "two run at a time, and either may end first"
    again = command(tmp_path, "repro", "run", "--out", "out", *LOAD, fault=fault)
    assert "earlier attempt" in again.stderr
    verified(again, tmp_path / "out")


@pytest.mark.slow
def test_sigterm_ends_the_trials_and_leaves_no_folder_behind(tmp_path: Path) -> None:
    record("another_function", tmp_path)
    (tmp_path / "tmp").mkdir()
    line = [sys.executable, "-m", "torchsan", "repro", "run", "--out", "out"]
    environ = environment() | {"TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(line, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("trial 1:" in text for text in process.stderr)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert started
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive
    assert not list((tmp_path / "tmp").glob("torchsan-*"))
