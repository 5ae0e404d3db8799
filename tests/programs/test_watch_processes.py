"""`torchsan run --watch` of programs that end badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import torchsan
from tests.programs.ending_badly import CRASH, LOOP
from torchsan.cli.values import watched_values
from torchsan.recording import Reader


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    source = str(Path(torchsan.__file__).parents[1])
    return os.environ | {"PYTHONPATH": source, "TORCHSAN_OPTIONS": ""}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "torchsan", "run", "--check", "values", "--out", "run", *words]


def test_the_last_name_is_the_kernel_that_crashed(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "crash.py").write_text(CRASH)
    words = command("--watch", "names", "crash.py")
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    assert done.stdout == "running\n"
    lines = [line.split() for line in done.stderr.splitlines() if line.startswith("torchsan: 0 inference")]
    assert [line[-1] for line in lines] == [
        "cpp_fused_sin_0",
        "extern_kernels.mm",
        "cpp_fused_cos_1",
        "extern_kernels.mm",
        "cpp_fused_tan_2",
    ]
    watched = watched_values(Reader(tmp_path / "run"))
    assert watched[-1].kernel == "cpp_fused_tan_2"
    assert len(watched) == len(lines)
    assert "died of SIGSEGV" in done.stderr


def test_ctrl_c_leaves_a_readable_recording(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    words = command("--watch", "save", "loop.py")
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    recording = Reader(tmp_path / "run")
    assert recording.closed
    stored = [w.stored for w in watched_values(recording) if w.stored is not None]
    from torchsan.store import Store

    with Store(recording.tensors) as store:
        assert set(stored) <= set(store.names())
        assert len(store.names()) <= len(set(stored)) + 1  # What was being recorded when the key was pressed.
        assert store.fsck()
