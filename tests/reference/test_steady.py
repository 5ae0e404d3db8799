"""What is off by the same for other data is an error; what is off by something else each time is rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchsan.reference.steady import ElementsAgain, Steady


def decided(off: Callable[[torch.Generator], torch.Tensor], fixed: float = 0.0, first: float = 1.0) -> tuple[bool, int]:
    """What is said of a number that is `off` by so much for other data, and after how many."""
    generator = torch.Generator().manual_seed(0)
    steady = Steady(torch.tensor([first]), least=torch.tensor([0.1]))
    for count in range(1, 100):
        said = steady.add(off(generator), [torch.tensor([fixed]), torch.tensor([-fixed])])
        if said is not None:
            return said, count
    raise AssertionError("never decided")


def noisy(mean: float, noise: float) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: mean + noise * torch.randn(1, generator=generator)


@pytest.mark.parametrize(("noise", "most"), [(0.001, 4), (0.05, 8), (0.3, 24)])
def test_an_error_is_found_however_noisy_and_after_the_fewer_data_the_clearer_it_is(noise: float, most: int) -> None:
    said, count = decided(noisy(1.0, noise))
    assert said
    assert count <= most


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_rounding_is_not_an_error(noise: float) -> None:
    assert not decided(noisy(0.0, noise))[0]


@pytest.mark.parametrize("mean", [-1.0, 0.2, 4.0])
def test_another_error_is_not_the_same(mean: float) -> None:
    assert decided(noisy(mean, 0.001)) == (False, 1)


def test_what_is_rounded_alike_for_all_data_is_no_error() -> None:
    assert not decided(noisy(1.0, 0.001), fixed=0.5)[0]
    assert decided(noisy(1.0, 0.001), fixed=0.01)[0]


def test_less_than_what_counts_is_no_error() -> None:
    assert not decided(noisy(0.05, 0.0001), first=0.05)[0]


def elements(wrong: float) -> bool | None:
    """Sums of four numbers, the first of which is off by `wrong`."""
    generator = torch.Generator().manual_seed(0)

    def result() -> tuple[torch.Tensor, torch.Tensor]:
        exact = torch.randn(4, generator=generator, dtype=torch.float64)
        actual = exact + 1e-3 * torch.randn(4, generator=generator, dtype=torch.float64)
        actual[0] += wrong
        return actual, exact

    actual, exact = result()
    outside = torch.tensor([True, False, False, True])
    again = ElementsAgain(actual, outside, exact, torch.full((4,), 1e-4, dtype=torch.float64))
    said = None
    while said is None:
        actual, exact = result()
        said = again.add(actual, lambda _change, exact=exact: exact, [], [])
    return said


def test_an_element_that_is_off_each_time_is_wrong_among_others_that_are_not() -> None:
    assert elements(0.02) is True
    assert elements(0.0) is False
