"""Two miscompiles of PyTorch's own, through the command line; and the eager function as rung zero."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torchsan
from torchsan.records import Stage

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


class Lies(torch.nn.Module):
    """Computes something else when it is captured: what no later stage can be blamed for."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        return y * self.factor if torch.compiler.is_compiling() else y


def test_check_call_blames_the_capture_for_what_no_stage_did() -> None:
    report = torchsan.check_call(Lies(2.0), torch.randn(3, 4))
    assert not report
    assert [f.stage for f in report.findings] == [Stage.CAPTURE]
    with pytest.raises(torchsan.FindingsError):
        report.raise_if_findings()


def test_check_call_leaves_its_arguments_alone_and_finds_nothing_in_a_healthy_module() -> None:
    module, x = Lies(1.0), torch.randn(3, 4)
    report = torchsan.check_call(module, x)
    assert report
    assert report.findings == ()
    assert module.norm.running_mean is not None
    assert not module.norm.running_mean.any()
