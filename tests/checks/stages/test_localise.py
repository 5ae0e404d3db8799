"""Two miscompiles of PyTorch's own, found through the command line at the step that made them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torchsan

ATTENTION = """
import torch


def attention(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)).div(2.8284)
    return torch.matmul(scores.softmax({axis}), v)


torch.manual_seed(0)
q, k, v = (torch.randn(4, 4, 4, 8) for _ in range(3))
with torch.no_grad():
    torch.compile(attention)(q, k, v)
"""

OVERLAP = """
import torch


def double_then_add(x, y):
    x.mul_(2)
    return x + y


compiled = torch.compile(double_then_add, backend="aot_eager")
compiled(torch.ones(4), torch.ones(4))
base = torch.ones(8)
compiled(base[:4], base[2:6])
"""


def run(folder: Path, source: str) -> dict[str, Any]:
    (folder / "case.py").write_text(source)
    command = [sys.executable, "-m", "torchsan", "run", "--check", "stages", "--json", "out.json", "case.py"]
    environ = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    report: dict[str, Any] = json.loads((folder / "out.json").read_text())
    assert done.returncode == (1 if report["findings"] else 0), done.stderr
    return report


@pytest.mark.fixed_in("2.15")
def test_softmax_over_the_wrong_axis_is_the_patterns_fault(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, ATTENTION.format(axis=-2))["findings"]
    assert (finding["kind"], finding["stage"], finding["severity"]) == ("wrong-values", "joint-passes", "error")
    assert "_sfdp_pattern_1" in finding["pass"]
    assert any(line["code"] == "return torch.matmul(scores.softmax(-2), v)" for line in finding["source"])
    assert "+_scaled_dot_product" in finding["evidence"]["diff"]


def test_a_graph_reused_for_inputs_that_overlap_is_aots_fault(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, OVERLAP)["findings"]
    assert (finding["kind"], finding["stage"]) == ("wrong-values", "aot")
    assert finding["source"]


@pytest.mark.slow
def test_softmax_over_the_right_axis_is_nobodys(tmp_path: Path) -> None:
    assert run(tmp_path, ATTENTION.format(axis=-1))["findings"] == []
