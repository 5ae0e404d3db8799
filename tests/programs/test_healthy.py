"""Nothing is said of healthy programs: architectures, optimizers, mixed precision, linear algebra, long reductions."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.programs.healthy import HEALTHY
from torchsan.records import Severity

EVERY_DAY = {"optimizer_NAdam", "a_variance_far_from_zero", "norms_in_float16", "solving_a_hilbert_matrix"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in HEALTHY])
def test_nothing_is_said_of_a_healthy_program(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session(check=("values", "stages")) as run:
        HEALTHY[name]()
    assert run.coverage.buffers_checked > 0
    assert not [f"{f.kind}: {f.message}" for f in run.findings if f.severity is not Severity.NOTE]


def test_there_are_at_least_sixty() -> None:
    assert len(HEALTHY) >= 60
