"""No `error` on models that nobody wrote for torchsan, and at least 95 % of their buffers checked."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.programs.models import MODELS


@pytest.mark.filterwarnings("default")  # transformers warns of its own deprecations
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n != "gpt2" else []) for n in MODELS])
def test_no_error_on_a_transformers_model(name: str) -> None:
    torch.manual_seed(0)
    with torchsan.session(check="values") as run:
        MODELS[name]()
    assert not [f for f in run.findings if f.severity == "error"]
    coverage = run.coverage
    assert coverage.buffers_checked >= 0.95 * coverage.buffers > 0, coverage.skipped
