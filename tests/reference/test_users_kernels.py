"""What a graph has in the place of a user's Triton kernel, run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

from tests.programs import users_kernels as kernels
from torchsan.reference.arithmetic import Arithmetic, Operators, Unavailable
from torchsan.reference.users_kernels import NoReference, guarded, interpreted
from torchsan.torch_internals.triton_interpreter import interpreting


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with interpreting():
        yield


def _call(kernel: Any, grid: tuple[int, ...] = (1,), **arguments: Any) -> dict[str, Any]:
    return {
        "kernel_idx": kernel_side_table.add_kernel(kernel),
        "constant_args_idx": kernel_side_table.add_constant_args({"BLOCK": 64}),
        "grid": [grid],
        "tma_descriptor_metadata": {},
        "kwargs": arguments,
    }


def _operators(arithmetic: Arithmetic) -> Operators:
    return Operators(arithmetic, 1, lambda *_: pytest.fail("nothing is drawn"))


def test_the_mutating_operator_overwrites_and_the_functional_one_returns() -> None:
    x = torch.ones(5)
    assert interpreted(_call(kernels.increment, a=x, n=5), lambda gpu: _rounding()) is None
    assert x.tolist() == [2.0] * 5
    call = {**_call(kernels.increment, a=x, n=5), "tensors_to_clone": ["a"]}
    results = interpreted(call, lambda gpu: _rounding())
    assert results is not None
    assert results["a"].tolist() == [3.0] * 5
    assert x.tolist() == [2.0] * 5


def _rounding() -> Any:
    from torchsan.reference.users_kernels import Exact

    return Exact()


def test_float64_knows_the_dtypes_of_the_run_before() -> None:
    x = torch.randn(16, 16)
    call = _call(kernels.product, a=x, b=x, out=torch.zeros(16, 16), M=16, N=16, K=16)
    call["constant_args_idx"] = kernel_side_table.add_constant_args({"BLOCK": 16})
    _operators(Arithmetic.EAGER).users_kernel(call)
    wide = {n: v.double() if isinstance(v, torch.Tensor) else v for n, v in call["kwargs"].items()}
    _operators(Arithmetic.EXACT).users_kernel({**call, "kwargs": wide})
    assert (wide["out"] - x.double() @ x.double()).abs().max() < 1e-12


def test_it_runs_as_the_program_does_on_guarded_memory() -> None:
    x, out = torch.ones(5), torch.zeros(9)
    guarded(_call(kernels.add, a=x, b=x, out=out[2:7], n=5))
    assert out.tolist() == [0, 0, 2, 2, 2, 2, 2, 0, 0]
    with pytest.raises(NoReference, match="beyond writes outside of its tensors"):
        guarded(_call(kernels.beyond, grid=(2,), a=torch.ones(64), out=torch.zeros(64), n=64))


def test_there_is_no_reference_for_a_large_grid_or_another_arithmetic() -> None:
    call = _call(kernels.increment, grid=(1 << 20,), a=torch.ones(5), n=5)
    with pytest.raises(Unavailable, match="no reference: increment runs 1048576 programs"):
        _operators(Arithmetic.EAGER).users_kernel(call)
    with pytest.raises(Unavailable, match="not computed in bfloat16"):
        _operators(Arithmetic.BFLOAT16).users_kernel(call)


def test_what_cannot_be_launched_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(call: Any) -> None:
        raise AttributeError("nothing to time it with")

    monkeypatch.setattr("torchsan.reference.users_kernels.run_users_kernel", launch)
    x = torch.ones(5)
    guarded(_call(kernels.increment, a=x, n=5))
    assert x.tolist() == [2.0] * 5
    with pytest.raises(AttributeError, match="nothing to time it with"):
        guarded(_call(kernels.increment, grid=(1 << 20,), a=x, n=5))
