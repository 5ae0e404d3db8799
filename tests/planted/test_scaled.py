"""A wrong factor of one operator is an error that names it, at every site and of every size; without it, nothing is."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.planted.scaled import SHAPES, SITES, called
from torchsan.records import Finding, Severity

pytestmark = pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")

FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
USUAL = {"library": "matmul", "decomposition": "decomposed"}
"""The shape of computation that a fault at a site is tried in, if it is not `pointwise`."""


def found(site: str, dtype: torch.dtype, error: float, rows: int = 8, shape: str = "") -> list[Finding]:
    """What torchsan says of a program with `rows` × 32 elements and an operator that is off by `error`."""
    torch._dynamo.reset()
    form = SHAPES[shape or USUAL.get(site, "pointwise")]
    with torchsan.session(check=("values", "stages")) as run, SITES[site][0](form.op, error):
        called(form, dtype, rows, torch.compile)
    assert not [s for s in run.coverage.skipped if "failed" in s.reason]
    return [f for f in run.findings if f.severity is not Severity.NOTE]


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("site", "dtype", "error", "rows"),
    [
        ("kernel", FLOAT32, 1e-6, 128),
        slow("kernel", FLOAT32, 1e-5, 8),
        slow("kernel", FLOAT32, 1e-4, 8),
        slow("kernel", FLOAT32, 1e-3, 8),
        slow("kernel", FLOAT32, -1e-2, 8),
        slow("kernel", FLOAT32, 0.1, 8),
        slow("kernel", torch.float64, 1e-12, 8),
        ("kernel", BFLOAT16, 2e-2, 8),
        ("kernel", BFLOAT16, 4e-3, 128),
        slow("kernel", BFLOAT16, -4e-2, 8),
        slow("kernel", BFLOAT16, 0.1, 8),
        slow("kernel", FLOAT16, 2e-2, 8),
        slow("kernel", FLOAT16, 4e-3, 128),
        slow("kernel", FLOAT16, 0.1, 8),
        ("library", FLOAT32, 1e-5, 8),
        slow("library", FLOAT32, 0.1, 8),
        slow("library", BFLOAT16, 2e-2, 8),
        slow("library", BFLOAT16, 0.1, 8),
        slow("decomposition", FLOAT32, 1e-5, 8),
        slow("decomposition", FLOAT32, 1e-3, 8),
        slow("decomposition", FLOAT32, 0.1, 8),
        ("decomposition", BFLOAT16, 0.1, 8),
        slow("decomposition", BFLOAT16, 2e-2, 8),
        slow("joint", FLOAT32, 1e-5, 8),
        slow("joint", FLOAT32, 0.1, 8),
        slow("joint", BFLOAT16, 2e-2, 8),
        ("joint", BFLOAT16, 0.1, 8),
        ("post-grad", FLOAT32, 1e-5, 8),
        slow("post-grad", FLOAT32, 1e-4, 8),
        slow("post-grad", FLOAT32, 1e-3, 8),
        slow("post-grad", FLOAT32, 1e-2, 8),
        slow("post-grad", FLOAT32, 0.1, 8),
        ("post-grad", BFLOAT16, 0.1, 8),
        slow("post-grad", BFLOAT16, 2e-2, 8),
        slow("post-grad", BFLOAT16, 4e-3, 128),
        slow("post-grad", FLOAT16, 2e-2, 8),
    ],
)
def test_a_wrong_factor_is_an_error_that_names_the_operator(
    site: str, dtype: torch.dtype, error: float, rows: int
) -> None:
    errors = [f for f in found(site, dtype, error, rows) if f.severity is Severity.ERROR]
    assert errors
    for finding in errors:
        assert (finding.kind, finding.stage) == ("wrong-values", SITES[site][1])
        assert f"aten.{SHAPES[USUAL.get(site, 'pointwise')].op}.default" in finding.ops
        assert finding.nodes
        assert finding.source


@pytest.mark.parametrize(
    ("site", "shape", "dtype", "error", "rows"),
    [
        ("kernel", "gradient", FLOAT32, 1e-3, 8),
    ],
)
def test_a_wrong_factor_is_an_error_in_any_shape_of_computation(
    site: str, shape: str, dtype: torch.dtype, error: float, rows: int
) -> None:
    errors = [f for f in found(site, dtype, error, rows, shape) if f.severity is Severity.ERROR]
    assert errors
    for finding in errors:
        assert (finding.kind, finding.stage) == ("wrong-values", SITES[site][1])
        assert f"aten.{SHAPES[shape].op}.default" in finding.ops


@pytest.mark.parametrize(
    ("site", "dtype", "rows"),
    [
        ("kernel", BFLOAT16, 128),
        slow("kernel", FLOAT32, 128),
        slow("kernel", FLOAT16, 128),
        slow("kernel", torch.float64, 8),
        slow("library", FLOAT32, 8),
        slow("library", BFLOAT16, 128),
        slow("decomposition", BFLOAT16, 8),
        slow("decomposition", FLOAT32, 8),
        slow("joint", BFLOAT16, 8),
        slow("post-grad", BFLOAT16, 8),
    ],
)
def test_nothing_is_found_without_it(site: str, dtype: torch.dtype, rows: int) -> None:
    assert found(site, dtype, 0.0, rows) == []


def test_the_size_of_a_shared_error_is_told() -> None:
    finding, *_ = found("kernel", BFLOAT16, 2e-2, 128)
    shared = finding.evidence["shared"]
    assert "tanh" in shared["nodes"]
    assert shared["what"] == "factor"
    assert shared["size"] == pytest.approx(0.02, rel=0.2)
    assert "too large" in finding.message
