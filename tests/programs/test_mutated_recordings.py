"""Recordings that were changed at random are read right or refused: nothing else raises, hangs or is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def mutate(first: int, count: int, seconds: int) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.programs.mutated_recordings", str(first), str(count)]
    memory = Path("/dev/shm")  # Thousands of small files are written and removed, which a disk takes its time for.
    environment = os.environ | ({"TMPDIR": str(memory)} if os.access(memory, os.W_OK) else {})
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert done.stdout == f"{count} mutations, 0 problems\n"


def test_mutated_recordings_are_read_right_or_refused() -> None:
    mutate(0, 500, 280)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_twenty_thousand_mutated_recordings_are_read_right_or_refused(part: int) -> None:
    mutate(10_000 + 2000 * part, 2000, 1700)
