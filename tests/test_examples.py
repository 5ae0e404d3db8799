from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entry_points import write_entry_points
from torchsan.recording import Reader

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run_pytest(project: Path, tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    write_entry_points(tmp_path / "installed")
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "installed"), str(ROOT / "src")]),
        "TORCHSAN_OPTIONS": f"out={tmp_path / 'runs'}",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=300)


def test_the_sample_project_finds_its_wrong_fake_kernel(tmp_path: Path) -> None:
    done = run_pytest(EXAMPLES / "custom_operator", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert "F1: error: metadata-mismatch" in done.stdout
    assert "dtype of output is float64, its fake kernel says float32" in done.stdout
    (manifest,) = (tmp_path / "runs").glob("*/*/manifest.json")
    recording = Reader(manifest.parent)
    assert "test_brightness_is_the_mean" in recording.path.name
    assert {op for f in recording.findings() for op in f.ops} == {"pixelmath.brightness.default"}


@pytest.mark.slow
def test_the_sample_projects_own_tests_pass(tmp_path: Path) -> None:
    done = run_pytest(EXAMPLES / "custom_operator", tmp_path, "-p", "no:torchsan", "-o", "addopts=")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_the_callback_checks_the_first_steps_of_a_trainer(wrong: bool) -> None:
    """`wrong` has Inductor generate a relu that adds one."""
    program = f"""
import runpy
import torch._inductor.config as config
if {wrong}:
    config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"
runpy.run_path({str(EXAMPLES / "hugging_face.py")!r}, run_name="__main__")
"""
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=600)
    assert "torchsan: checked" in done.stdout, done.stderr
    if wrong:
        assert done.returncode == 1
        assert "FindingsError" in done.stderr
        assert "error: wrong-values" in done.stderr
        assert "trained" not in done.stdout
    else:
        assert done.returncode == 0, done.stderr
        assert "torchsan: error" not in done.stdout
        assert "trained 6 steps" in done.stdout
