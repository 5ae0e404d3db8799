"""No error on healthy programs, and outputs that are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchsan
from tests.programs.clean import CLEAN
from torchsan.records import Severity

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit._script")


def under_the_check(program: Callable[[], Any], **options: Any) -> list[str]:
    with torchsan.session(check="memory", **options) as run:
        program()
    assert run.coverage.kernels
    failures = [s.reason for s in run.coverage.skipped if "torchsan failed" in s.reason]
    assert not failures
    return [f"{f.severity}: {f.message}" for f in run.findings if f.severity is not Severity.NOTE]


@pytest.mark.parametrize("name", CLEAN)
def test_a_healthy_program(name: str) -> None:
    torch.manual_seed(0)
    assert under_the_check(CLEAN[name]) == []
