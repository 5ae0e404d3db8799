"""What a nudged replay does to numbers, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchsan.reference.nudge import Nudger

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_move_by_a_few_units_in_the_last_place(dtype: torch.dtype) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    moved = Nudger(1).last_bit(x)
    assert moved.dtype is dtype
    distance = (moved - x).abs().double() / x.abs().double()
    assert float((distance > 0).double().mean()) > 0.5
    assert float(distance.max()) <= 6 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_and_what_is_no_number_stay(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan]).repeat(100).to(dtype)
    for seed in range(4):
        moved = Nudger(seed).last_bit(x)
        torch.testing.assert_close(moved, x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bits_stay_in_their_dtype(name: str) -> None:
    x = torch.randn(100).to(getattr(torch, name))
    assert Nudger(1).last_bit(x).dtype is x.dtype


def test_a_sum_that_is_infinite_stays_so() -> None:
    x = torch.tensor([[1.0, torch.inf], [1.0, 2.0]])
    total = torch.ops.aten.sum.dim_IntList
    for seed in range(8):
        moved = Nudger(seed).result(total, (x, [-1]), {})
        assert moved[0] == torch.inf
        assert 2.99 < float(moved[1]) < 3.01


def test_other_shapes_and_larger_ones_than_the_pool_get_noise_of_their_own() -> None:
    x = torch.ones(3, 1 << 20).t()
    moved = Nudger(1).last_bit(x)
    assert moved.stride() == x.stride()
    assert Nudger(1).last_bit(x[:9].to(torch.complex64)).stride() == (1, 9)
    assert float((moved != 1).double().mean()) > 0.5
    assert Nudger(1).last_bit(torch.ones(0, 3)).shape == (0, 3)


def test_in_place_operators_move_what_they_write_and_what_they_return() -> None:
    x, mean, variance = torch.randn(8, 4), torch.rand(4), torch.rand(4) + 1
    norm = torch.ops.aten._native_batch_norm_legit.default
    plain = [mean.clone(), variance.clone()]
    expected = norm(x, None, None, *plain, True, 0.1, 1e-5)
    moved = [mean.clone(), variance.clone()]
    found = Nudger(1).result(norm, (x, None, None, *moved, True, 0.1, 1e-5), {})
    for one, other in zip((*plain, expected[0]), (*moved, found[0]), strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_copies_and_fills_stay_as_they_are() -> None:
    x, y = torch.rand(100), torch.zeros(100)
    assert torch.equal(Nudger(1).result(torch.ops.aten.copy_.default, (y, x), {}), x)
    assert Nudger(1).result(torch.ops.aten.fill_.Scalar, (y, 3.0), {}).unique().tolist() == [3.0]
    assert not torch.equal(Nudger(1).result(torch.ops.aten.mul_.Tensor, (y, x), {}), 3 * x)


def _spread(x: torch.Tensor, *, usual: bool) -> float:
    """How far sixteen sums of the same numbers lie apart, relative to the sum of magnitudes."""
    sums = [Nudger(k, usual=usual).result(torch.ops.aten.sum.dim_IntList, (x, [0]), {}) for k in range(16)]
    return float(torch.stack(sums).std() / x.abs().sum())


def test_a_long_sum_usually_loses_far_less_than_it_may() -> None:
    x = torch.rand(100_000)
    assert _spread(x, usual=True) < 1e-6 < 1e-5 < _spread(x, usual=False)


def test_terms_that_are_nothing_beside_the_sum_are_always_lost() -> None:
    x = torch.full((100_000,), 1e-3)
    x[0] = 1e6
    assert _spread(x, usual=True) > 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_no_code_rounds_stays(dtype: torch.dtype) -> None:
    """Half of a whole number is exact, and a comparison with it does not go either way; a third is not."""
    x = torch.arange(1, 41).to(dtype)
    halves = Nudger(1).result(torch.ops.aten.mul.Tensor, (x, 0.5), {})
    thirds = Nudger(1).result(torch.ops.aten.mul.Tensor, (x, 1 / 3), {})
    assert torch.equal(halves, x * 0.5)
    assert not torch.equal(thirds, x * (1 / 3))


def test_numbers_that_are_put_in_their_places_stay_and_those_that_are_added_up_move() -> None:
    aten = torch.ops.aten
    generator = torch.Generator().manual_seed(0)
    x, v = (torch.randn(8, generator=generator).bfloat16() for _ in range(2))
    i = torch.arange(8)
    puts: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.index_put.default, (x, [i], v), {}),
        (aten._unsafe_index_put.default, (x, [i], v, False), {}),
        (aten.scatter.src, (x, 0, i, v), {}),
        (aten.scatter_reduce.two, (x, 0, i, v, "amax"), {}),
        (aten.index_copy.default, (x, 0, i, v), {}),
        (aten.topk.default, (x, 3), {}),
    ]
    adds: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.index_put.default, (x, [i], v), {"accumulate": True}),
        (aten.scatter.reduce, (x, 0, i, v), {"reduce": "add"}),
        (aten.scatter_reduce.two, (x, 0, i, v, "sum"), {}),
    ]
    for calls, moves in ((puts, False), (adds, True)):
        for func, args, kwargs in calls:
            results = Nudger(1).result(func, args, kwargs), func(*args, **kwargs)
            moved, plain = (r[0] if isinstance(r, tuple) else r for r in results)
            assert torch.equal(moved, plain) is not moves, func


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_convolution_in_half_precision_adds_up_in_single(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((4, 4, 32, 32), (4, 4, 3, 3), (4, 4, 30, 30))
    )
    rest = [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]]
    backward = torch.ops.aten.convolution_backward.default
    moved, plain = (
        Nudger(1).result(backward, (gradient, x, weight, *rest), {})[1],
        backward(gradient, x, weight, *rest)[1],
    )
    assert 0 < float((moved - plain).norm() / plain.norm()) < 8 * torch.finfo(dtype).eps
