"""A pass that lays a result out in another way, or saves another dtype for backward, is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._functorch import config as functorch_config

import torchsan
from torchsan.checks.stages.layouts import restrided
from torchsan.records import Finding, Kind, Severity, Stage
from torchsan.reference.calls import Results

aten = torch.ops.aten


def results(tensor: torch.Tensor) -> Results:
    return Results(tensors={"output 0": tensor, "input x after the call": tensor})


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (torch.zeros(3, 4), torch.zeros(4, 3).t(), True),
        (torch.zeros(3, 4), torch.zeros(3, 4), False),
        (torch.zeros(3, 1), torch.zeros(3, 2)[:, :1].clone().as_strided((3, 1), (1, 7)), False),
        (torch.zeros(0, 4), torch.zeros(4, 0).t(), False),
        (torch.zeros(1, 4), torch.zeros(4), False),
    ],
)
def test_strides_differ_where_there_are_several_elements(one: torch.Tensor, other: torch.Tensor, differ: bool) -> None:
    assert [d.name for d in restrided(results(one), results(other))] == ["output 0"] * differ


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).tanh()


def train(backend: str) -> list[Finding]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with torchsan.session(check="stages") as run, inductor_config.patch(force_disable_caches=True):
        loss: Any = torch.compile(product, backend=backend)(x, w).sum()
        loss.backward()
    return list(run.findings)


def turned(gm: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
    """Compute the first result in the memory of its transpose."""
    result = next(n for n in gm.graph.nodes if n.target is aten.tanh.default)
    with gm.graph.inserting_after(result):
        across = gm.graph.call_function(aten.permute.default, (result, [1, 0]))
    with gm.graph.inserting_after(across):
        copied = gm.graph.call_function(aten.clone.default, (across,), {"memory_format": torch.contiguous_format})
    with gm.graph.inserting_after(copied):
        back = gm.graph.call_function(aten.permute.default, (copied, [1, 0]))
    across.meta["val"] = result.meta["val"].permute(1, 0)
    copied.meta["val"] = across.meta["val"].contiguous()
    back.meta["val"] = copied.meta["val"].permute(1, 0)
    result.replace_all_uses_with(back, delete_user_cb=lambda user: user is not across)
    return gm


@pytest.mark.filterwarnings("ignore")
def test_a_pass_that_changes_the_strides_of_an_output_is_named() -> None:
    with functorch_config.patch(joint_custom_pass=turned):
        (finding,) = train("aot_eager")
    assert (finding.kind, finding.severity) == (Kind.METADATA_MISMATCH, Severity.ERROR)
    assert (finding.stage, finding.pass_) == (Stage.JOINT_PASSES, "joint_custom_pass")
    assert "output 0 has strides (1, 4), not (4, 1)" in finding.message
    assert train("aot_eager") == []


def wider(graph: torch.fx.Graph) -> None:
    """Save what the backward reads in float64, which it was not compiled for."""
    output = next(n for n in graph.nodes if n.op == "output")
    results: Any = output.args[0]
    if any("tangents" in n.name for n in graph.nodes):
        return
    saved = next(n for n in results if n.target is aten.tanh.default)
    with graph.inserting_before(output):
        wide = graph.call_function(torch.ops.prims.convert_element_type.default, (saved, torch.float64))
    output.args = (tuple(wide if i and n is saved else n for i, n in enumerate(results)),)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_pass_that_saves_another_dtype_for_backward_is_named() -> None:
    with inductor_config.patch(post_grad_custom_post_pass=wider):
        (finding,) = train("inductor")
    assert (finding.kind, finding.severity) == (Kind.METADATA_MISMATCH, Severity.ERROR)
    assert (finding.stage, finding.pass_) == (Stage.POST_GRAD_PASSES, "post_grad_custom_post_pass")
    assert "which the backward reads, is float64[4, 4], not float32[4, 4]" in finding.message
    assert train("inductor") == []
