"""How far apart numbers are, as their dtype tells them apart."""

from __future__ import annotations

import pytest
import torch

from torchsan.reference.distances import are_counts, as_near_as_usual, away, near, relative_error, same, scale

NAN, INF = float("nan"), float("inf")


def test_a_number_that_is_none_is_the_same_as_itself() -> None:
    assert same(torch.tensor([NAN, INF, 1.0]), torch.tensor([NAN, -INF, 1.0])).tolist() == [True, False, True]


@pytest.mark.parametrize(("dtype", "places"), [(torch.float32, 4), (torch.bfloat16, 1), (torch.float16, 1)])
def test_near_is_a_few_units_in_the_last_place(dtype: torch.dtype, places: int) -> None:
    one, eps = torch.ones(1, dtype=dtype), torch.finfo(dtype).eps
    assert bool(near(one + places * eps, one))
    assert not bool(near(one + (places + 1) * eps, one))


def test_what_is_no_number_is_not_away_from_anything() -> None:
    assert away(torch.tensor([NAN, INF, 3.0]), torch.tensor([1.0, 1.0, 1.0])).tolist() == [0, 0, 2]


def test_the_scale_is_that_of_most_elements_or_of_the_largest() -> None:
    assert scale(torch.tensor([1e-9, 2.0, 3.0])) == 2.0
    assert scale(torch.tensor([0.0, 0.0, -5.0])) == 5.0
    assert scale(torch.zeros(3)) == 1.0
    assert scale(torch.zeros(0)) == 0.0


def test_counts_are_small_whole_numbers_that_eager_has_right() -> None:
    nine, ten = torch.tensor([9.0, 4.0]), torch.tensor([10.0, 5.0])
    assert are_counts(ten, nine, nine)
    assert not are_counts(ten + 0.1, nine, nine)
    assert not are_counts(ten, nine + 0.01, nine)
    assert not are_counts(ten * 100, nine * 100, nine * 100)
    assert not are_counts(ten + 0j, nine + 0j, nine + 0j)


def test_a_result_is_as_near_as_usual_up_to_what_eager_was_off_in_an_earlier_call() -> None:
    exact = torch.linspace(-1, 1, 100, dtype=torch.float64)
    error = relative_error((exact * (1 + 1e-5)).float(), exact)
    assert error == pytest.approx(1e-5, rel=0.1)
    eager = exact.float()
    assert as_near_as_usual(eager * (1 + 5e-5), eager, error)
    assert not as_near_as_usual(eager * (1 + 1e-4), eager, error)
    assert not as_near_as_usual(eager * torch.nan, eager, error)
    assert not as_near_as_usual(torch.ones(3, dtype=torch.int64), torch.tensor([1, 1, 2]), error)
