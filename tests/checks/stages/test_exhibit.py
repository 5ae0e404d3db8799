"""What is kept of a wrong step for a reproducer."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.fx
from torch._inductor import config as inductor_config

import torchsan
from torchsan.recording import Reader

aten = torch.ops.aten


def turned(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.tanh.default):
        node.target = aten.sinh.default


def test_a_program_with_vmap_is_kept_as_the_operators_that_it_calls(tmp_path: Path) -> None:
    program = torch.compile(torch.func.vmap(lambda x: torch.tanh(torch.stack([x.cos(), x.sin()]))))
    with (
        inductor_config.patch(post_grad_custom_post_pass=turned),
        torchsan.session(check="stages", out=tmp_path / "run") as run,
    ):
        program(torch.linspace(0.5, 1.5, 4))
    assert [finding.id for finding in run.findings] == ["F1"]
    recording = Reader(tmp_path / "run")
    assert recording.reproducible() == {"F1"}
    (event,) = recording.events("exhibit")
    assert [call["op"] for call in event["exhibit"]["nodes"]][-1] == "aten.tanh.default"
