"""The numbers that Inductor's kernels draw are drawn again, to the last bit or nearly so."""

from __future__ import annotations

import pytest
import torch

from torchsan.reference import random as philox
from torchsan.reference.arithmetic import Arithmetic, Operators


def test_the_same_numbers_as_compiled_code() -> None:
    @torch.compile
    def draw() -> tuple[torch.Tensor, ...]:
        return torch.rand(100), torch.randn(7, 11), torch.randint(3, 11, (50,))

    torch.manual_seed(5)
    uniform, normal, integers = draw()
    torch.manual_seed(5)
    seeds = torch.empty(3, dtype=torch.int64)
    torch.ops.aten.randint.low_out(-(2**63), 2**63 - 1, [3], out=seeds)
    assert torch.equal(philox.rand([100], seeds[0]), uniform)
    torch.testing.assert_close(philox.randn([7, 11], seeds[1]), normal, rtol=1e-6, atol=1e-6)
    assert torch.equal(philox.randint(3, 11, [50], seeds[2]), integers)


def test_the_same_numbers_as_triton() -> None:
    pytest.importorskip("triton")
    from tests import triton_on_cpu

    def draw() -> tuple[torch.Tensor, ...]:
        return torch.rand(100), torch.randn(7, 11), torch.randint(3, 11, (50,))

    with triton_on_cpu.enabled():
        torch.manual_seed(5)
        uniform, normal, integers = torch.compile(draw)()
    torch.manual_seed(5)
    seeds = torch.empty(3, dtype=torch.int64)
    torch.ops.aten.randint.low_out(-(2**63), 2**63 - 1, [3], out=seeds)
    assert torch.equal(philox.rand([100], seeds[0], triton=True), uniform)
    torch.testing.assert_close(philox.randn([7, 11], seeds[1], triton=True), normal, rtol=1e-6, atol=1e-6)
    assert torch.equal(philox.randint(3, 11, [50], seeds[2], triton=True), integers)


def test_no_numbers() -> None:
    assert philox.rand([0, 4], torch.tensor(1)).shape == (0, 4)


def test_an_operator_of_inductors_own_that_draws_nothing_is_computed() -> None:
    import torch._inductor.inductor_prims  # It defines the operator.

    order = torch.ops.prims.inductor_force_stride_order.default
    x = torch.ones(2, 3)
    operators = Operators(Arithmetic.EAGER, 0, philox.draw_as_kernels)
    result = operators.call(order, (x, (1, 2)), {}, lambda: ((), {}))
    assert torch.equal(result, x)
