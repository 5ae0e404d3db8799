"""What it takes to check one call after the other of one compiled function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchsan
from torchsan.checks.stages.localise import Search
from torchsan.reference.arithmetic import Arithmetic


def test_graphs_are_compared_in_float64_once_for_calls_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Arithmetic | None] = []
    execute = Search._execute

    def counted(self: Search, graph: Any, arithmetic: Arithmetic | None, *args: Any, **kwargs: Any) -> Any:
        ran.append(arithmetic)
        return execute(self, graph, arithmetic, *args, **kwargs)

    monkeypatch.setattr(Search, "_execute", counted)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.Softmax(-1))
    with torchsan.session(check="stages") as run:
        compiled = torch.compile(model)
        compiled(torch.randn(32, 64)).square().sum().backward()
        assert Arithmetic.EXACT in ran
        ran.clear()
        compiled(torch.randn(32, 64)).square().sum().backward()
        assert ran
        assert Arithmetic.EXACT not in ran
        ran.clear()
        compiled(torch.randn(16, 64)).square().sum().backward()
        assert Arithmetic.EXACT in ran
    assert run.findings == ()
