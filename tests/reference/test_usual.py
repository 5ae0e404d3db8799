"""What lies as near to eager as ever needs no closer look, and anything else does."""

from __future__ import annotations

import pytest
import torch

from torchsan.reference.usual import Usual


def learned(dtype: torch.dtype = torch.float32) -> tuple[Usual, torch.Tensor]:
    torch.manual_seed(0)
    usual, eager = Usual(), torch.randn(1000).to(dtype)
    usual.learn("a", noisy(eager, 1), eager)
    return usual, eager


def noisy(eager: torch.Tensor, seed: int) -> torch.Tensor:
    noise = torch.randn(eager.shape, generator=torch.Generator().manual_seed(seed))
    return (eager.double() * (1 + noise * torch.finfo(eager.dtype).eps)).to(eager.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_noise_of_other_data_is_usual(dtype: torch.dtype) -> None:
    usual, eager = learned(dtype)
    for seed in range(2, 12):
        other = (eager.flip(0) * 3).to(dtype)
        assert usual.allows("a", noisy(other, seed), other)
        assert usual.allows("a", other, other)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_of_two_halves_can_be_as_usual() -> None:
    usual, eager = Usual(), torch.randn(10, dtype=torch.complex32)
    usual.learn("a", eager.clone(), eager)
    assert usual.allows("a", eager.clone(), eager)
    assert not usual.allows("a", torch.zeros_like(eager), eager)


@pytest.mark.parametrize("error", [1e-5, 1e-3, float("nan"), float("inf")])
def test_one_element_that_is_further_off_is_not(error: float) -> None:
    usual, eager = learned()
    actual = noisy(eager, 2)
    actual[7] += error
    assert not usual.allows("a", actual, eager)


def test_where_time_is_short_more_is_usual_and_a_plain_error_is_not() -> None:
    eager = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    usual = Usual(sampled=True)
    usual.learn("here", eager * (1 + 1e-7), eager)
    assert usual.allows("here", eager * (1 + 3e-7), eager)
    assert not usual.allows("here", eager * (1 + 1e-6), eager)


def test_a_factor_that_all_elements_share_is_not() -> None:
    usual, eager = learned()
    assert not usual.allows("a", noisy(eager, 2) * (1 + 1e-5), eager)


def test_what_was_never_judged_is_not_usual_and_what_was_equal_must_stay_so() -> None:
    usual, eager = Usual(), torch.randn(10)
    assert not usual.allows("a", eager, eager)
    usual.learn("a", eager, eager)
    assert usual.allows("a", eager, eager)
    assert not usual.allows("a", torch.nextafter(eager, eager + 1), eager)
    assert not usual.allows("a", eager[:5], eager)


def test_whole_numbers_are_usual_where_they_are_equal() -> None:
    usual, eager = Usual(), torch.arange(10)
    usual.learn("a", eager, eager)
    assert usual.allows("a", eager.clone(), eager)
    assert not usual.allows("a", eager + 1, eager)


def test_what_is_no_number_in_both_is_left_to_the_judge() -> None:
    usual, eager = learned()
    both = eager.clone()
    both[0] = float("nan")
    usual.learn("b", both, both)
    assert not usual.allows("b", both, both)


def test_what_rounding_took_far_says_nothing_about_another_place() -> None:
    usual, eager = Usual(rounded_once=True), torch.randn(1000)
    usual.learn("noise", eager * 1.01, eager)
    usual.learn("near", eager * (1 + 1e-7), eager)
    assert usual.knows("near")
    assert not usual.knows("noise")
