"""Choices that rounding decides are notes, counted and named; without such choices nothing is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchsan
from torchsan.records import Finding, Severity


def found(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Finding]:
    torch._dynamo.reset()
    with torchsan.session(check=("values", "stages")) as run:
        torch.compile(function)(*inputs)
    return list(run.findings)


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((64, 200), (200, 200))]


def inside_a_kernel(x: torch.Tensor, _w: torch.Tensor) -> torch.Tensor:
    # Eager rounds each term to bfloat16, the kernel does not.
    return x * 1.1 + 0.3 > x * 0.3 + 1


def across_kernels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x * 1.1 + 0.3).tanh() * x) @ w > x @ w


@pytest.mark.parametrize(
    ("function", "check", "kernel"),
    [
        (inside_a_kernel, "values", "cpp_fused_add_gt_mul_0"),
        pytest.param(across_kernels, "stages", "extern_kernels.mm", marks=pytest.mark.slow),
    ],
)
def test_a_comparison_that_rounding_decides_is_a_note(function: Callable[..., Any], check: str, kernel: str) -> None:
    (note,) = found(function, *inputs(torch.bfloat16))
    assert (note.check, note.kind, note.severity) == (check, "precision-loss", Severity.NOTE)
    assert note.ops == ("aten.gt.Tensor",)
    flip = note.evidence["flip"]
    assert flip["upstream"]["kernel"] == kernel
    assert 0 < flip["flipped"] < 100
    assert flip["elements"] == 64 * 200
    assert flip["margin"] <= 8
    assert "units in the last place" in note.message


def test_where_nothing_is_near_a_decision_nothing_is_said() -> None:
    x, w = inputs(torch.bfloat16)
    assert found(inside_a_kernel, x.sign() * (x.abs() + 3), w) == []


def test_a_comparison_that_is_wrong_is_an_error() -> None:
    from tests.planted.faults import Fault, planted

    x, w = inputs(torch.float32)
    fault = Fault(
        name="greater", program=lambda: found(inside_a_kernel, x, w), pattern=r"(tmp\d+) > (tmp\d+)", wrong=r"\1 < \2",
        ops=frozenset(),
    )  # fmt: skip
    with planted(fault) as changed:
        errors = [f for f in fault.program() if f.severity is Severity.ERROR]
    assert changed
    assert [f.check for f in errors] == ["values"]
    assert "aten.gt.Tensor" in errors[0].ops


def with_its_own_maximum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    largest = (x * w + x).amax(-1)
    return (largest * 2 + largest.exp()).sum()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "wrong"), [(torch.bfloat16, True), (torch.float32, False)])
def test_a_number_compared_with_its_own_rounded_copy_is_an_error_of_the_kernel(dtype: torch.dtype, wrong: bool) -> None:
    """pytorch#186799: the gradient of `amax` looks for the maximum among numbers that were not rounded as it was."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in ((8, 16), (16,)))
    with torchsan.session() as run:
        torch.compile(with_its_own_maximum)(x, w).backward()
    errors = [f for f in run.findings if f.severity is Severity.ERROR]
    assert bool(errors) is wrong
    for error in errors:
        assert (error.kind, error.stage) == ("non-finite", "kernel")
        assert error.kernel
        assert "aten.eq.Tensor" in error.ops
        assert error.source
