"""User-written Triton kernels in compiled programs: no reference, no false alarm, and nobody runs them unguarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import torchsan
from torchsan.records import Finding, Severity

pytest.importorskip("triton")
from tests import triton_on_cpu
from tests.programs import users_kernels as programs


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    with triton_on_cpu.enabled():
        yield


X = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))


def _run(program: Callable[[Tensor], Tensor], check: str) -> tuple[list[Finding], dict[str, list[str]]]:
    """The findings, and what was skipped with its reasons."""
    torch._dynamo.reset()
    with torchsan.session(check=check) as run:
        torch.compile(program)(X.clone())
    skipped: dict[str, list[str]] = {}
    for each in run.coverage.skipped:
        skipped.setdefault(each.what, []).append(each.reason)
    assert "torchsan failed" not in str(skipped)
    return list(run.findings), skipped


@pytest.mark.parametrize(
    "program",
    [
        programs.into_empty,
        programs.into_zeros,
        programs.in_place,
        programs.into_an_input,
        programs.twice_in_place,
        programs.into_a_row,
        programs.autotuned,
    ],
)
def test_what_follows_a_users_kernel_is_not_judged_by_what_was_before_it(program: Callable[[Tensor], Tensor]) -> None:
    findings, skipped = _run(program, "values,stages,memory")
    assert [f for f in findings if f.severity is Severity.ERROR] == []
    assert any("no reference: the user wrote" in reason for reasons in skipped.values() for reason in reasons)
    assert skipped["stages of graph 0"] == ["a Triton kernel of the user's own is not run a second time"]


def test_what_goes_in_and_what_is_made_of_it_is_checked() -> None:
    torch._dynamo.reset()
    with torchsan.session(check="values") as run:
        torch.compile(programs.into_empty)(X.clone())
    (skipped,) = run.coverage.skipped
    assert (skipped.what, skipped.reason) == ("buf0 of graph 0 inference", "no reference: the user wrote add_0")
    # What the user's kernel is given, and what is computed from its result.
    assert run.coverage.buffers_checked == 2


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # what Dynamo does itself
def test_a_users_kernel_in_forward_and_backward() -> None:
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    with torchsan.session() as run:
        torch.compile(programs.forward_and_backward)(x).sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    assert [f for f in run.findings if f.severity is Severity.ERROR] == []
    assert x.grad is not None


def test_a_users_kernel_that_writes_out_of_bounds_is_named_with_all_checks_on() -> None:
    findings, _ = _run(programs.out_of_bounds, "values,stages,metadata,memory")
    assert [(f.kind, f.kernel, f.buffer) for f in findings] == [("out-of-bounds-write", "beyond_0", "buf0")]
    assert "8 elements after the end" in findings[0].message
