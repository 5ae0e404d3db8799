"""Healthy programs and models give no finding, and compile as they do without the check."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.planted.operators import operator
from tests.programs.clean import CLEAN
from tests.programs.models import MODELS
from torchsan.calls import CrossReference, crossref
from torchsan.records import Severity, Stage

_SOME = ("layer_norm_whose_gradient_is_noise", "dropout_in_training", "batch_norm_in_inference")


def alarms(program: Callable[[], Any]) -> list[str]:
    """The errors, and what is said of nodes that Inductor fuses, however grave."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with crossref() as run:
            program()
    assert run.coverage.graphs
    assert not any("failed" in s.reason for s in run.coverage.skipped), run.coverage.skipped
    return [f.message for f in run.findings if f.severity is Severity.ERROR or f.stage is Stage.POST_GRAD_PASSES]


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("name", _SOME)
def test_a_healthy_program_has_no_error(name: str) -> None:
    assert alarms(CLEAN[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CLEAN if n not in _SOME])
def test_no_healthy_program_has_an_error(name: str) -> None:
    assert alarms(CLEAN[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_model_has_an_error(name: str) -> None:
    assert alarms(MODELS[name]) == []


@pytest.mark.xdist_group("compiled")
def test_a_program_compiles_to_the_same_under_the_check() -> None:
    from torch._dynamo.utils import counters

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = operator("right")((x @ w).relu())
        return doubled.sum() + torch.sin(x).mean()

    def compiled() -> tuple[torch.Tensor, int, int]:
        torch._dynamo.reset()
        counters.clear()
        x, w = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 2, 20).reshape(4, 5)
        function = torch.compile(program)
        function(x, w)
        result = function(x, w)
        return result, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    plain = compiled()
    with crossref() as run:
        checked = compiled()
    assert torch.equal(plain[0], checked[0])
    assert plain[1:] == checked[1:] == (1, 0)
    assert run.coverage.graphs == 1
    assert not run.findings


@pytest.mark.xdist_group("compiled")
def test_dynamo_compiles_nothing_of_torchsan_after_a_graph_break() -> None:
    from torch._dynamo.utils import counters

    def program(x: torch.Tensor) -> torch.Tensor:
        positive: torch.Tensor = operator("right_dynamic")(x + 1)  # Its size depends on data.
        return positive * 2

    def compiled() -> tuple[torch.Tensor, dict[str, int], int]:
        torch._dynamo.reset()
        counters.clear()
        result = torch.compile(program)(torch.linspace(-1, 1, 12))
        return result, dict(counters["frames"]), counters["stats"]["unique_graphs"]

    plain = compiled()
    with crossref() as run:
        checked = compiled()
    assert torch.equal(plain[0], checked[0])
    assert checked[2] == 2
    # The operator's own kernel is Python too, and is not compiled either while it is looked at.
    assert checked[1]["total"] <= plain[1]["total"]
    assert not run.findings
    assert not any("failed" in s.reason for s in run.coverage.skipped)


def test_a_model_in_training_has_no_error_in_eager_code() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.GELU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 8),
        torch.nn.LayerNorm(8),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    with crossref() as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            optimizer.step()
        with torch.inference_mode():
            model(torch.randn(2, 3, 8, 8))
    assert not run.findings
    assert run.coverage.ops_checked > 20


def test_the_overloads_that_are_loaded_can_be_listed() -> None:
    operator("right")
    assert "planted.right.default" in CrossReference.loaded_overloads()
