"""What is kept of the gradients that captured graphs give: no more, and no longer, than somebody waits for."""

from __future__ import annotations

import gc

import torch

from torchsan.checks.stages.gradients import EagerGradients


class _Waiting:
    """Somebody who waits."""


def test_a_gradient_is_known_until_the_end_of_the_backward() -> None:
    gradients, who = EagerGradients(), _Waiting()
    parameter, other, gradient = torch.zeros(2), torch.zeros(2), torch.ones(2)
    gradients.note(parameter, gradient)
    assert gradients.of(parameter) is None
    gradients.await_for(who)
    gradients.note(parameter, gradient)
    assert gradients.of(parameter) is gradient
    assert gradients.of(other) is None
    assert gradients.of(None) is None
    gradients.forget(who)
    assert gradients.of(parameter) is None


def test_the_part_that_one_of_two_graphs_gives_is_not_taken_for_the_whole() -> None:
    gradients, who = EagerGradients(), _Waiting()
    parameter = torch.zeros(2)
    gradients.await_for(who)
    gradients.note(parameter, torch.ones(2))
    gradients.note(parameter, torch.ones(2))
    assert gradients.of(parameter) is None


def test_nothing_is_kept_for_one_who_is_gone() -> None:
    gradients, who = EagerGradients(), _Waiting()
    parameter = torch.zeros(2)
    gradients.await_for(who)
    del who
    gc.collect()
    gradients.note(parameter, torch.ones(2))
    assert gradients.of(parameter) is None
