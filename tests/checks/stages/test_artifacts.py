"""The graph of each stage of a compile is in the recording."""

from __future__ import annotations

from pathlib import Path

import torch

import torchsan
from torchsan.graphs.printed import try_parse
from torchsan.recording import Reader
from torchsan.records import ArtifactRecord, Stage, decode


def test_each_stage_of_a_training_step_leaves_its_graph_and_says_which_passes_changed_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with torchsan.session(check="stages", out=tmp_path / "run"):
        torch.compile(model)(torch.randn(2, 4)).sum().backward()
    recording = Reader(tmp_path / "run")
    made = [decode(ArtifactRecord, event["artifact"]) for event in recording.events("artifact")]
    forward = [record for record in made if record.direction == "forward"]
    assert [record.stage for record in forward][:3] == [Stage.CAPTURE, Stage.AOT, Stage.JOINT_PASSES]
    assert any("partition" in record.passes for record in forward)
    assert any("partition" in record.passes for record in made if record.direction == "backward")
    for record in made:
        parsed = try_parse(recording.artifact(record.name))
        assert parsed is not None
        assert list(parsed.computed())
