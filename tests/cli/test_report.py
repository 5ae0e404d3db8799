"""`torchsan report` on the command line: where the time went, as at the end of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from torchsan.recording import Writer

PROGRAM = """
import torch
function = torch.compile(lambda x: x.relu().sum())
for _ in range(3):
    function(torch.randn(8))
"""


def test_a_run_and_its_recording_tell_where_the_time_went(cli: Run) -> None:
    Path("program.py").write_text(PROGRAM)
    done = cli("run", "--explain-cost", "--out", "run", "--json", "report.json", "program.py")
    assert done.returncode == 0, done.stderr
    verdict, table = done.stderr.split("\nWhere the time went: ")
    assert "torchsan: clean" in verdict
    for part in ("the program", "compiling it", "check values", "check stages", "torchsan itself"):
        assert f"\n  {part} " in table
    assert "The dearest to check of 1 kernel" in table
    cost = json.loads(Path("report.json").read_text())["cost"]
    parts = [cost["program"], cost["compile"], cost["torchsan"], *cost["checks"].values()]
    assert sum(parts) == pytest.approx(cost["seconds"])
    assert 0 < cost["later_calls"]["values"] < cost["checks"]["values"]
    again = cli("report", "--explain-cost", "run")
    assert again.stdout.endswith(table)
    assert "Where the time went" not in cli("report", "run").stdout


def test_it_takes_one_recording(cli: Run) -> None:
    for name in ("a", "b"):
        Writer.create(name, command=["script.py"]).close()
    done = cli("report", "--explain-cost", "a", "b")
    assert done.returncode == 2
    assert "--explain-cost takes one recording" in done.stderr
