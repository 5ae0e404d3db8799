"""Accelerate, with the real package."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

accelerate = pytest.importorskip("accelerate")


@pytest.mark.slow
def test_figures_go_to_the_trackers_of_the_accelerator() -> None:
    from torchsan.integrations.accelerate import always_on

    torch._dynamo.reset()
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(8, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = torch.compile(lambda x: model(x).square().mean())
    logged: list[tuple[int, dict[str, Any]]] = []
    with (
        patch.object(accelerator, "log", lambda figures, step: logged.append((step, figures))),
        always_on(accelerator, budget="50%", every=5) as job,
    ):
        for _ in range(10):
            accelerator.backward(step(torch.randn(4, 8)))
            optimizer.step()
            optimizer.zero_grad()
            job.step()
    assert [n for n, _ in logged] == [5, 10, 10]
    assert logged[-1][1]["torchsan/buffers_checked"] > 0
    assert not [f for f in job.findings if f.severity == "error"]
