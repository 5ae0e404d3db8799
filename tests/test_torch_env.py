"""Environments with another PyTorch, and what `.ci/run` does when one cannot be had."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tools import torch_env

CI = torch_env.ROOT / ".ci" / "run"


def test_the_triton_that_a_pytorch_asks_for_is_told_without_its_conditions() -> None:
    requirements = ["sympy>=1.13.3", 'triton==3.9.0; platform_system == "Linux"']
    assert torch_env.triton_for(requirements) == "triton==3.9.0"
    assert torch_env.triton_for(requirements[:1]) is None


def test_installing_torchsan_keeps_every_pytorch_of_the_matrix_and_its_triton() -> None:
    project = tomllib.loads((torch_env.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    asked = [Requirement(text) for text in [*project["dependencies"], *itertools.chain(*extras)]]
    for name, versions in {"torch": torch_env.MATRIX, "triton": ("3.7.1", "3.8.0", "3.9.0")}.items():
        (requirement,) = [r for r in asked if r.name == name]
        assert [v for v in versions if v not in requirement.specifier] == []


def test_a_package_that_does_not_come_is_asked_for_twice_and_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(words)
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr("tools.torch_env.subprocess.run", run)
    monkeypatch.setattr("tools.torch_env.time.sleep", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        torch_env.install("torch==2.15.0")
    assert (ended.value.code, len(calls)) == (os.EX_TEMPFAIL, 2)
    assert "pip install torch==2.15.0 failed twice" in capsys.readouterr().err


def run_ci(folder: Path, *, environment: int = 0, failing: str = "none") -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with a `make` that notes its targets, and a Python that ends as the environment's making does."""
    programs = {
        "bin/make": f'echo "$@" >> {folder}/made; test "$1" != {failing}',
        "project/.venv/bin/python": f"exit {environment}",
    }
    for name, text in programs.items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (folder / "project" / ".ci").mkdir()
    shutil.copy(CI, folder / "project" / ".ci" / "run")
    variables = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    variables.pop("GITHUB_ACTIONS", None)
    command = ["bash", str(folder / "project" / ".ci" / "run")]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)


def made(folder: Path) -> list[str]:
    return (folder / "made").read_text().split()


def test_ci_runs_a_part_of_the_tests_with_the_newest_pytorch(tmp_path: Path) -> None:
    assert run_ci(tmp_path).returncode == 0
    assert made(tmp_path) == ["lint", "test", "smoke"]


@pytest.mark.parametrize("failing", ["lint", "test", "smoke"])
def test_ci_fails_where_one_of_its_steps_does(tmp_path: Path, failing: str) -> None:
    assert run_ci(tmp_path, failing=failing).returncode != 0
    assert made(tmp_path)[-1] == failing


@pytest.mark.parametrize("status", [os.EX_TEMPFAIL, 124])
def test_ci_passes_without_the_newest_pytorch_and_says_so_last(tmp_path: Path, status: int) -> None:
    done = run_ci(tmp_path, environment=status)
    assert done.returncode == 0
    assert made(tmp_path) == ["lint", "test"]
    assert done.stderr.splitlines()[-1].startswith("== NOT RUN: the newest PyTorch could not be downloaded")


def test_ci_fails_where_the_environment_cannot_be_made_for_another_reason(tmp_path: Path) -> None:
    assert run_ci(tmp_path, environment=1).returncode == 1
