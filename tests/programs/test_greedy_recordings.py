"""Recordings under 10 MB that are made to take much memory and time: no command takes 500 MB, or long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.programs.greedy_recordings import COMMANDS, FILES, SHAPES, make, measure
from tests.report.html.recordings import ordinary

MEGABYTES = 500
SECONDS = 60
"""Of computing: of a machine of the tests, which is several times slower than one that is not shared."""


def read(tmp_path: Path, shape: str, commands: list[str]) -> None:
    run = make(shape, tmp_path / "run")
    ordinary(tmp_path / "ordinary")
    for name in commands:
        words = COMMANDS[name](run, tmp_path / "out")
        if name.startswith("diff"):  # Of two such recordings each would count.
            words[-1] = str(tmp_path / "ordinary")
        peak, seconds, status, said = measure(words, 300)
        assert status in (0, 1, 2, 4), (shape, name, said)
        assert peak < MEGABYTES, (shape, name)
        assert seconds < SECONDS, (shape, name)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("shape", "command"),
    [
        ("brackets", "report"),
        ("kernels", "html"),
        ("graphs and checks", "report"),
        ("graphs", "diff"),
        ("a printed graph", "html"),
        ("a printed graph of lines", "html"),
        ("a text of control characters", "html"),
        ("a printed graph of brackets", "diff"),
    ],
)
def test_a_greedy_recording_is_bounded(tmp_path: Path, shape: str, command: str) -> None:
    read(tmp_path / "all", shape, [command])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, *FILES])
def test_every_greedy_recording_is_bounded_in_every_command(tmp_path: Path, shape: str) -> None:
    read(tmp_path / "all", shape, list(COMMANDS))
