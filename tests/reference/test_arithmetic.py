"""Operators are computed in other arithmetics as they are in their own, but for rounding."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

import torchsan
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


@torch.library.custom_op("torchsan_test_draws::noise", mutates_args=())
def _noise(x: torch.Tensor) -> torch.Tensor:
    return x + random.random() + float(numpy.random.rand()) + torch.rand(())


@_noise.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_an_operator_draws_is_not_drawn_twice() -> None:
    def run() -> list[float]:
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: _noise(x).sin() * 2)
        drawn = [float(compiled(torch.ones(3)).sum()) for _ in range(3)]
        return [*drawn, random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    expected = run()
    with torchsan.session() as session:
        assert run() == expected
    assert not [f for f in session.findings if f.severity == "error"]
