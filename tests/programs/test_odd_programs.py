"""Programs that change what torchsan stands on: their output, files and status are those without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchsan
from tests.programs.odd import AS_ROOT, PROGRAMS, PROLOGUE

Outcome = tuple[bytes, int, dict[str, bytes]]


def outcome(folder: Path, command: list[str]) -> tuple[Outcome, str]:
    """Run a program in a folder; return its output, its status and its files, and what was said beside."""
    folder.mkdir()
    folder.chmod(0o777)
    environment = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    environment.pop("TORCHSAN_OPTIONS", None)
    with (folder.parent / "said").open("w+b") as said:  # A file: a daemon would keep a pipe open.
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        said.seek(0)
        text = said.read().decode()
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "torchsan-runs" not in path.parts
    }
    return (done.stdout, done.returncode, files), text


_OFTEN = frozenset(
    [
        "closes descriptors",
        "takes over descriptors",
        "closes all of its streams",
        "kills itself",
        "forks a child that ends as programs do",
        "becomes a daemon",
        "becomes another program",
        "drops its privileges",
        "changes its root",
        "may open no files",
        "may open one file",
        "may open no files once torch is there",
        "removes the recording",
        "may write small files",
    ]
)
_MARKED = [name if name in _OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]


@pytest.mark.parametrize("name", _MARKED)
def test_an_odd_program_does_not_notice(tmp_path: Path, name: str) -> None:
    if name in AS_ROOT and os.getuid() != 0:
        pytest.skip("only root may do this")
    program = tmp_path / "program.py"
    program.write_text(PROLOGUE + PROGRAMS[name])
    tmp_path.chmod(0o755)
    (out, status, files), _ = outcome(tmp_path / "plain", [sys.executable, str(program)])
    run = [sys.executable, "-m", "torchsan", "run", str(program)]
    (own_out, own_status, own_files), said = outcome(tmp_path / "watched", run)
    assert own_out == out, said
    expected = 128 - status if status < 0 else status
    assert own_status == (expected or 4), said
    assert own_files == files, said
    assert "internal-error" not in said, said
