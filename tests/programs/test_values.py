"""No `error` on healthy programs, and (nearly) every buffer of theirs looked at."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.programs.clean import CLEAN

EVERY_DAY = {
    "layer_norm_whose_gradient_is_noise",
    "softmax_of_rows_that_are_all_hidden",
    "random_numbers_of_every_kind",
    "batch_norm_in_training",
    "bfloat16_through_and_through",
    "ties_in_sorting_and_maxima",
    "masks_that_hang_on_the_last_bit",
    "casts_of_floats_out_of_range",
    "an_ill_conditioned_solve",
    "three_steps_of_adam",
    "complex_arithmetic",
    "inputs_mutated_in_place",
    "scatter_with_duplicates",
    "attention_by_hand",
    "cancellation",
    "special_functions",
    "empty_and_zero_dimensional",
    "dynamic_shapes",
    "control_flow",
    "frozen_weights",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in CLEAN])
def test_no_error_on_a_healthy_program(name: str) -> None:
    torch.manual_seed(0)
    with torchsan.session(check="values") as run:
        CLEAN[name]()
    assert not [f for f in run.findings if f.severity == "error"]
    coverage = run.coverage
    skipped = [s for s in coverage.skipped if "calls N|all" not in s.reason]  # Later calls hide no buffer.
    assert coverage.buffers_checked + len(skipped) >= coverage.buffers > 0, coverage


def test_a_program_without_inputs_is_checked() -> None:
    with torchsan.session(check="values") as run:
        torch.compile(lambda: torch.rand(30) + 1)()
    assert run.findings == ()
    assert [s.what for s in run.coverage.skipped] == ["buf0 of graph 0 inference"]  # its seeds
    assert run.coverage.buffers_checked == 1
