"""Triton's interpreter, mended: one test for each mend that Inductor's kernels do not show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from tests.programs.users_kernels import between, larger, scaled_sum
from torchsan.torch_internals.triton_interpreter import interpreting


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with interpreting():
        yield


def _run(kernel: Any, *args: Any, **constants: Any) -> None:
    kernel[(1,)](*args, **constants)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_arithmetic_is_on_numbers_and_an_argument_may_be_real(dtype: torch.dtype) -> None:
    a, b = torch.linspace(-3, 3, 13).to(dtype), torch.linspace(0, 9, 13).to(dtype)
    out = torch.zeros_like(a)
    _run(scaled_sum, a, b, out, 0.5, 13, BLOCK=16)
    assert torch.equal(out, (a + b) * 0.5)


def test_the_larger_of_a_number_and_nan_is_the_number() -> None:
    a, b, out = torch.tensor([torch.nan, 1.0]), torch.tensor([2.0, torch.nan]), torch.zeros(2)
    _run(larger, a, b, out, BLOCK=2)
    assert out.tolist() == [2.0, 1.0]


def test_and_and_or_are_element_by_element_and_a_dtype_is_a_constant() -> None:
    a, out = torch.arange(12.0)[:8] + 4, torch.zeros(8)
    _run(between, a, out, 5, 8, BLOCK=8, DOUBLE=False)
    assert out.tolist() == [0, 0, 6, 7, 0, 0, 10, 11]
    _run(between, a, out, 5, 8, BLOCK=8, DOUBLE=True)
    assert out.tolist() == [0, 0, 12, 14, 0, 0, 20, 22]


def test_the_users_module_is_left_alone() -> None:
    before = set(globals())
    _run(larger, torch.ones(2), torch.ones(2), torch.zeros(2), BLOCK=2)
    assert set(globals()) == before
