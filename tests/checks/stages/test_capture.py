"""The eager Python function against its compiled self."""

from __future__ import annotations

import pytest
import torch

import torchsan
from torchsan.records import Stage


class Lies(torch.nn.Module):
    """Computes something else when it is captured: what no later stage can be blamed for."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        return y * self.factor if torch.compiler.is_compiling() else y


def test_check_call_blames_the_capture_for_what_no_stage_did() -> None:
    report = torchsan.check_call(Lies(2.0), torch.randn(3, 4))
    assert not report
    assert [f.stage for f in report.findings] == [Stage.CAPTURE]
    with pytest.raises(torchsan.FindingsError):
        report.raise_if_findings()


def test_check_call_leaves_its_arguments_alone_and_finds_nothing_in_a_healthy_module() -> None:
    module, x = Lies(1.0), torch.randn(3, 4)
    report = torchsan.check_call(module, x)
    assert report
    assert report.findings == ()
    assert module.norm.running_mean is not None
    assert not module.norm.running_mean.any()
