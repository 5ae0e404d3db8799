"""Operators are computed in other arithmetics as they are in their own, but for rounding."""

from __future__ import annotations

import pytest
import torch

from torchsan.reference.arithmetic import Arithmetic, Operators


@pytest.mark.parametrize("arithmetic", [Arithmetic.BFLOAT16, Arithmetic.TF32, Arithmetic.CONTIGUOUS])
def test_what_a_custom_operator_returns_of_its_input_stays_that_memory(arithmetic: Arithmetic) -> None:
    with torch.library._scoped_library("torchsan_tests_narrow", "DEF") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x.view(x.shape), "CPU")
        same = torch.ops.torchsan_tests_narrow.same.default
        x = torch.randn(4, 3).t()
        result = Operators(arithmetic, 0, lambda *_: None).call(same, (x,), {}, lambda: ((x,), {}))
        assert result.data_ptr() == x.data_ptr()
