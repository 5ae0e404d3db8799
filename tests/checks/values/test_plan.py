"""What a launch is judged by, in programs whose memory is handed on and overwritten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchsan

WHERE = torch.tensor([0, 2, 1])


def added_to_a_fallback(x: torch.Tensor) -> torch.Tensor:
    """The result of an operator without a kernel of Inductor's, overwritten by the next launch."""
    z = x.cumsum(0)
    z[WHERE] += 1
    return z


def one_result_of_two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = x.sort(0)
    values[WHERE] = 0
    return values, places


def swapped(a: torch.Tensor, b: torch.Tensor) -> None:
    kept = a.clone()
    a.copy_(b.t())
    b.copy_(kept.t())


def twice(a: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    b = a + 1
    a.copy_(b.expand_as(a))
    return b.sum()


@pytest.mark.parametrize("program", [added_to_a_fallback, one_result_of_two, swapped, twice])
def test_what_is_overwritten_later_is_not_taken_for_what_it_is_then(program: Callable[..., object]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = [torch.randn(5, 5) for _ in range(program.__code__.co_argcount)]
    with torchsan.session(check="values") as run:
        torch.compile(program)(*given)
    assert not run.findings
    assert run.coverage.buffers_checked
