"""A wrong factor of one operator is an error that names it, at every site and of every size; without it, nothing is."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.planted.scaled import SITES, gate, residual
from torchsan.records import Finding, Severity

pytestmark = pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")

OPERATORS = {"kernel": "tanh", "library": "mm", "decomposition": "silu", "joint": "tanh", "post-grad": "tanh"}
FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16


def found(site: str, dtype: torch.dtype, error: float, rows: int = 8) -> list[Finding]:
    """What torchsan says of a program with `rows` × 32 elements and an operator that is off by `error`."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plant, _ = SITES[site]
    x = torch.randn(rows, 32).to(dtype)
    function = gate if site == "decomposition" else residual
    w = torch.randn(rows, 32).to(dtype) if function is gate else (torch.randn(32, 32) / 3).to(dtype)
    with torchsan.session(check=("values", "stages")) as run, plant(OPERATORS[site], error):
        torch.compile(function)(x, w)
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
        assert f"aten.{OPERATORS[site]}.default" in finding.ops
        assert finding.nodes
        assert finding.source


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
