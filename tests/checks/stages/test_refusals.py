"""Calls that PyTorch refuses and compiled code makes: the step that lost the refusal is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchsan
from torchsan.checks.stages.refusals import Refusals
from torchsan.records import Finding, Kind, Severity, Stage

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def errors(fn: Callable[..., Any], *args: Any, **options: Any) -> list[Finding]:
    with torchsan.session(check="stages") as run:
        torch.compile(fn, **options)(*args)
    assert not [s for s in run.coverage.skipped if "torchsan failed" in s.reason]
    return [f for f in run.findings if f.severity is Severity.ERROR]


def put(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.index_copy(x, 0, index, torch.ones(2, 3)) + 1


def test_a_decomposition_that_takes_what_its_operator_refuses_is_named_with_its_line() -> None:
    (found,) = errors(put, torch.zeros(4, 3), torch.tensor([0, -1]))
    assert (found.kind, found.stage) == (Kind.WRONG_VALUES, Stage.AOT)
    assert found.ops == ("aten.index_put.default", "aten.index_copy.default")
    assert [line.code for line in found.source] == ["return torch.index_copy(x, 0, index, torch.ones(2, 3)) + 1"]
    assert "it returns where the program raises IndexError: index_copy_(): index -1 is out of bounds" in found.message


def test_generated_code_that_does_is_named_with_its_kernel() -> None:
    (found,) = errors(lambda x: x**-1, torch.tensor([1, 2]))
    assert (found.stage, found.kernel, found.ops) == (Stage.KERNEL, "cpp_fused_pow_0", ("aten.pow.Tensor_Scalar",))
    assert "raises RuntimeError: Integers to negative integer powers are not allowed." in found.message


def test_indices_that_are_allowed_are_nothing() -> None:
    assert not errors(put, torch.zeros(4, 3), torch.tensor([0, 1]), backend="aot_eager")


def test_a_kernel_that_pytorch_does_not_have_is_nothing() -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool3d(x, 2) * 2

    torch._dynamo.reset()
    with torchsan.session(check="stages") as run:
        torch.compile(halved)(torch.randn(1, 2, 4, 4, 4).bfloat16())
    assert not run.findings


def test_a_program_that_catches_what_the_compiled_code_raises_too_is_left_alone() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, 0, torch.tensor([9]))

    with torchsan.session(check="stages") as run, pytest.raises(RuntimeError):
        torch.compile(first, backend="aot_eager")(torch.ones(4))
    assert not run.findings


@pytest.mark.parametrize(
    "error",
    [
        "UserWarning: it may change",
        "RuntimeError: x does not have a deterministic implementation",
        "RuntimeError: \"avg_pool3d_out_frame\" not implemented for 'BFloat16'",
    ],
)
def test_what_a_setting_or_a_missing_kernel_makes_of_a_right_call_is_no_refusal(error: str) -> None:
    told: list[str] = []
    refusals = Refusals()
    refusals.note(error, lambda: told.append(error))
    assert not refusals.confirm(error)
    assert not told


def test_a_refusal_counts_only_if_the_program_raises_the_same() -> None:
    told: list[str] = []
    refusals = Refusals()
    refusals.note("IndexError: far", lambda: told.append("far"))
    assert not refusals.confirm("IndexError: near")
    assert refusals.confirm("IndexError: far")
    refusals.forget()
    assert not refusals.confirm("IndexError: far")
    assert told == ["far"]
