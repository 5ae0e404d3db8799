"""A script of the user's, and a command of theirs that says whether it still shows the problem."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchsan.cli.main import main

SCRIPT = '''
import math
import helper

unused = [i for i in range(10)]


class Unused:
    def method(self):
        return 1


def divide(a, b):
    """Says so."""
    c = a + b
    if b == 0:
        extra = 1
        return math.inf
    return a / b


for i in range(3):
    unused.append(i)
print("loss", divide(helper.ONE, 0))
print("done")
'''
SHOWS = """
import subprocess, sys
done = subprocess.run([sys.executable, sys.argv[1]], capture_output=True, text=True)
sys.exit(0 if "loss inf" in done.stdout else 1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("ONE = 1\n")
    (tmp_path / "shows.py").write_text(SHOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_the_statements_that_matter_are_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "--check", f"{sys.executable} shows.py", "train.py", "--out", "out"]) == 0
    text = (folder / "out" / "repro.py").read_text()
    assert text.splitlines() == [
        "import math",
        "import helper",
        "",
        "def divide(a, b):",
        "    if b == 0:",
        "        return math.inf",
        "print('loss', divide(helper.ONE, 0))",
    ]
    assert "verified" in capsys.readouterr().out


def test_a_script_that_never_shows_it_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "--check", f"{sys.executable} -c 'raise SystemExit(1)' {{}}", "train.py", "--out", "o"]) == 2
    assert "[not-shown]" in capsys.readouterr().err


def test_when_the_time_is_up_the_smallest_so_far_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = f"{sys.executable} shows.py"
    assert main(["repro", "--check", check, "train.py", "--out", "out", "--time-limit", "0.3"]) == 0
    assert "time limit" in capsys.readouterr().out
    assert (folder / "out" / "repro.py").exists()
