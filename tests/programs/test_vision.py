"""No `error` in vision networks in training."""

from __future__ import annotations

import pytest
import torch

import torchsan
from tests.programs.vision import NETWORKS, train

EVERY_DAY = ("mobilenet",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in NETWORKS]
)
def test_no_error_in_a_vision_network(name: str) -> None:
    torch.manual_seed(0)
    with torchsan.session() as run:
        train(name)
    assert not [f for f in run.findings if f.severity == "error"]
    assert run.coverage.buffers_checked
