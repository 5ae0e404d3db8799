"""Two miscompiles of PyTorch's own, found through the command line at the step that made them; and what that costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchsan
from torchsan.checks.stages.localise import Search
from torchsan.checks.stages.plan import StageGraph
from torchsan.records import Stage
from torchsan.reference.arithmetic import Arithmetic
from torchsan.reference.calls import Results
from torchsan.torch_internals.snapshots import Snapshot

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


class _Counted(Search):
    """A program with twenty gradients, and one later graph: of that, the first gradient is off by `off`."""

    def __init__(self, off: float) -> None:
        snapshots = [
            Snapshot(stage=stage, graph=torch.fx.Graph(), attributes={}) for stage in (Stage.CAPTURE, Stage.AOT)
        ]
        stages: Any = SimpleNamespace(dynamo=SimpleNamespace(snapshots=snapshots), parts=[])
        super().__init__(stages, None, {}, lambda _reason: None)  # type: ignore[arg-type]  # nothing is called
        generator = torch.Generator().manual_seed(0)
        self._exact = [torch.randn(100, generator=generator, dtype=torch.float64) for _ in range(20)]
        self._noise = [torch.rand(100, generator=generator).mul(2).sub(1) for _ in range(20)]
        self._off = off
        self.ran: list[Arithmetic | None] = []

    def _execute(self, graph: StageGraph, arithmetic: Arithmetic | None, seed: int = 0, **_: Any) -> Results:
        self.ran.append(arithmetic)
        tensors = self._exact
        if arithmetic is Arithmetic.NUDGED:
            tensors = [e.float() * (1 + 1e-4 * n.roll(seed)) for e, n in zip(tensors, self._noise, strict=True)]
        elif arithmetic is not Arithmetic.EXACT:
            tensors = [e.float() for e in tensors]
        if graph is not self._top and arithmetic is Arithmetic.EAGER:
            off = [self._off, *[3e-7] * 19]
            tensors = [t * (1 + n * o) for t, n, o in zip(tensors, self._noise, off, strict=True)]
        return Results(tensors={f"gradient {i}": t for i, t in enumerate(tensors)})


def test_a_graph_that_is_as_precise_as_the_program_is_not_put_to_other_last_bits() -> None:
    search = _Counted(off=3e-7)
    assert search.less_precise([f"gradient {i}" for i in range(20)]) is None
    assert Arithmetic.NUDGED not in search.ran


def test_runs_with_other_last_bits_are_made_for_all_doubtful_results_at_once_and_keep_only_those() -> None:
    search = _Counted(off=1e-4)
    assert search.less_precise([f"gradient {i}" for i in range(20)]) is None
    nudged = [r for key, r in search._runs.items() if key[1] is Arithmetic.NUDGED]
    assert 0 < len(nudged) == search.ran.count(Arithmetic.NUDGED)
    assert all(list(r.tensors) == ["gradient 0"] for r in nudged if isinstance(r, Results))


def test_a_graph_that_is_less_precise_is_named() -> None:
    culprit = _Counted(off=0.05).less_precise(["gradient 0"])
    assert culprit is not None
    assert [d.name for d in culprit.differences] == ["gradient 0"]


def _tripled_where(x: torch.Tensor) -> torch.Tensor:
    chosen: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    return chosen * 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("factor", [3, 5])
def test_a_wrong_pass_is_found_beside_an_operator_that_takes_functions(factor: int) -> None:
    """Such a program has no arithmetic but its own: only what is plainly another result is an error."""
    from torch._inductor import config

    def multiply(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
            node.args = (node.args[0], factor)

    torch._dynamo.reset()
    with config.patch(post_grad_custom_pre_pass=multiply), torchsan.session(check="stages") as run, torch.no_grad():
        torch.compile(_tripled_where)(torch.linspace(-1, 2, 12))
    found = [(f.stage, f.pass_, "aten.mul.Tensor" in f.ops) for f in run.findings if f.severity == "error"]
    assert found == ([] if factor == 3 else [(Stage.POST_GRAD_PASSES, "post_grad_custom_pre_pass", True)])
