"""Nothing is said of programs that are hard to capture, and what cannot be checked of them has a reason."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.programs.captures import CAPTURES
from torchsan.records import Severity

EVERY_DAY = {"cond_that_writes", "checkpointing"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in CAPTURES]
)
def test_nothing_is_said_of_a_program_that_is_hard_to_capture(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session() as run:
        CAPTURES[name]()
    assert run.coverage.graphs > 0
    assert not [f"{f.kind}: {f.message}" for f in run.findings if f.severity is not Severity.NOTE]
    reasons = [s.reason for s in run.coverage.skipped]
    assert not [r for r in reasons if "torchsan failed" in r or "holds itself" in r]
