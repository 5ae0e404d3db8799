"""What differs between two runs of a program."""

from __future__ import annotations

import torch

from torchsan.checks.stages.findings import plainly_other
from torchsan.reference.calls import Results

NAN = float("nan")


def others(actual: torch.Tensor, expected: torch.Tensor) -> list[str]:
    mine, theirs = (Results(tensors={"output 0": t}) for t in (actual, expected))
    return [d.message for d in plainly_other(mine, theirs, ["output 0"])]


def test_only_what_rounding_could_not_give_is_plainly_another_result() -> None:
    x = torch.tensor([1.0, NAN, 3.0])
    assert others(x, x) == []
    assert others(x * 1.01, x) == []
    assert others(x * 2, x) == ["output 0 at [2] is 6, not 3 (2 of 3 elements)"]
    assert others(torch.ones(3), x) == ["output 0 at [1] is 1, not nan (2 of 3 elements)"]


def test_an_element_that_rounding_alone_has_changed_is_not_counted_with_those_that_are_other_ones() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert others(x * torch.tensor([1.000001, 1.0, 9.0]), x) == ["output 0 at [2] is 27, not 3 (1 of 3 elements)"]


def test_a_whole_number_may_be_decided_by_rounding() -> None:
    assert others(torch.tensor([1, 2]), torch.tensor([5, 2])) == []
