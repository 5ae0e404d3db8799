"""Calls are counted, the checked ones too, and a finding says in which of them it was made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._inductor.config

import torchsan
from torchsan.recording import Reader
from torchsan.records import Direction


@pytest.mark.filterwarnings("ignore")
def test_calls_are_counted_and_a_finding_knows_its_own(tmp_path: Path) -> None:
    faulty = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy", "force_disable_caches": True}
    with (
        torchsan.session(check=("values", "stages"), out=tmp_path / "run", calls=2) as run,
        torch._inductor.config.patch(faulty),
    ):
        function = torch.compile(lambda x: x.relu())
        for _ in range(3):
            function(torch.randn(8))
    recording = Reader(tmp_path / "run")
    assert {f.call for f in run.findings} == {0}
    assert all(f.time is not None and f.time > 1_700_000_000 for f in recording.findings())
    counts = {(c.direction, c.seen, c.checked) for c in recording.calls()}
    assert counts == {(Direction.INFERENCE, 3, 2)}
    assert recording.kernels_checked() == 1
