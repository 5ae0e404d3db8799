"""Healthy programs full of aliases and writes in place: the stages check says nothing of them, not even a note."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.programs.aliasing import PROGRAMS

DAILY = {"views", "scatters"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in DAILY else [pytest.mark.slow]) for n in PROGRAMS])
def test_a_healthy_program_is_left_alone(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session(check="stages") as run:
        PROGRAMS[name](torch.compile)
    assert list(run.findings) == []
    assert not [s for s in run.coverage.skipped if "torchsan failed" in s.reason or "observed" in s.reason]
