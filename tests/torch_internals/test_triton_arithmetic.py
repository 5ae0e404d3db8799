"""`@triton.jit` functions run in float64, rounded as asked: what they compute, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from tests.programs import users_kernels as kernels
from torchsan.reference.users_kernels import Exact, Nudged, ToType
from torchsan.torch_internals.operators import OutsideOfTensors
from torchsan.torch_internals.triton_arithmetic import interpret

X = torch.randn(5, 33, generator=torch.Generator().manual_seed(0))


def _softmax(x: torch.Tensor, dtype: torch.dtype, rounding: Any) -> torch.Tensor:
    out = torch.zeros_like(x)
    arguments = {"a": x, "out": out, "n": x.shape[1], "BLOCK": 64}
    interpret(kernels.softmax, (len(x),), arguments, {"a": dtype, "out": dtype}, rounding)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unrounded_it_is_float64_whatever_the_kernel_casts_to(dtype: torch.dtype) -> None:
    wide = X.to(dtype).double()
    assert (_softmax(wide, dtype, Exact()) - wide.softmax(-1)).abs().max() < 1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounded_to_its_type_it_is_as_near_as_eager(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    result, exact = _softmax(x, dtype, ToType(tf32=False)), x.double().softmax(-1)
    assert result.dtype is dtype
    assert (result - exact).abs().max() <= torch.finfo(dtype).eps
    assert (result - exact).abs().max() > 0


def test_random_last_bits_depend_on_the_seed_and_stay_near() -> None:
    one, same, other = (_softmax(X, torch.float32, Nudged(seed, tf32=False)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (one - X.softmax(-1)).abs().max() < 1e-5


def _multiplied(rounding: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(a), b.shape[1], dtype=a.dtype)
    sizes = {"M": a.shape[0], "N": b.shape[1], "K": a.shape[1], "BLOCK": 16}
    types = dict.fromkeys(("a", "b", "out"), torch.float32)
    interpret(kernels.product, (1, 1), {"a": a, "b": b, "out": out, **sizes}, types, rounding)
    return out


def test_products_are_summed_in_float64_or_made_of_ten_bits_by_tensor_cores() -> None:
    a, b = torch.rand(7, 40) + 1, torch.rand(40, 9) + 1
    exact = a.double() @ b.double()
    assert (_multiplied(Exact(), a.double(), b.double()) - exact).abs().max() < 1e-12
    errors = [float((_multiplied(ToType(tf32=tf32), a, b) - exact).abs().max()) for tf32 in (False, True)]
    assert errors[0] < 1e-4 < errors[1] < 1e-1


def test_a_store_outside_is_refused_and_nothing_is_written() -> None:
    x = torch.ones(64)
    out = torch.zeros(64)
    with pytest.raises(OutsideOfTensors, match="writes up to 8 elements after the end of out"):
        interpret(kernels.beyond, (2,), {"a": x, "out": out, "n": 64, "BLOCK": 64}, {}, Exact())
    assert not out.any()


def test_a_load_outside_is_told_of_the_nearest_tensor() -> None:
    x, out = torch.ones(64), torch.zeros(64)
    with pytest.raises(OutsideOfTensors, match="it reads 1 element after the end of a") as raised:
        interpret(kernels.neighbours, (1,), {"a": x, "out": out, "n": 64, "BLOCK": 64}, {}, Exact())
    assert raised.value.access == "reads"


def test_two_views_of_one_storage_stay_so() -> None:
    whole = torch.arange(10.0)
    interpret(kernels.add, (1,), {"a": whole[:4], "b": whole[2:6], "out": whole[6:], "n": 4, "BLOCK": 4}, {}, Exact())
    assert whole.tolist() == [0, 1, 2, 3, 4, 5, 2, 4, 6, 8]
