"""The page of a real program: one compile, with PyTorch's own planted bug."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor.config

import torchsan
from torchsan.recording import Reader
from torchsan.records import CallTimes, GraphNodes, MemoryCall, decode
from torchsan.report.html.page import Model, build


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x)) * 2


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("real") / "run"
    with (
        torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}),
        torch.no_grad(),
        torchsan.session(check=("values", "memory"), watch="print", out=folder),
    ):
        compiled = torch.compile(Block())
        for _ in range(3):
            compiled(torch.randn(4, 8))
    torch._dynamo.reset()
    return Reader(folder)


@pytest.fixture(scope="module")
def model(recording: Reader) -> Model:
    return build(recording)


def test_the_wrong_kernel_stands_out_with_its_picture(model: Model) -> None:
    (graph,) = model.index["graphs"]
    verdicts = {k["name"]: k["verdict"] for k in graph["kernels"]}
    assert verdicts.pop("extern_kernels.addmm") == "right"
    assert list(verdicts.values()) == ["error"]
    (finding,) = [f for f in model.index["findings"] if f["check"] == "values"]
    assert [p["picture"] for p in finding["pictures"]] == ["map", "errors", "samples"]
    assert finding["pictures"][0]["cells"].count(1) == 4 * 16
    assert graph["kernels"][finding["launch"]]["findings"] == [finding["id"]]


def test_nodes_lead_to_this_file(recording: Reader, model: Model) -> None:
    (event,) = recording.events("nodes")
    nodes = decode(GraphNodes, event["nodes"])
    relu = next(n for n in nodes.nodes if n.op == "aten.relu.default")
    assert (relu.type, relu.inputs) == ("float32[4, 16]", ("addmm",))
    assert relu.source is not None
    source = nodes.sources[relu.source]
    assert source.file == __file__
    assert source.code == "return torch.relu(self.up(x)) * 2"
    table: list[Any] = model.parts["nodes-0"]
    assert next(row for row in table if row[0] == relu.name)[5] > 2


def test_the_launches_of_the_checked_calls_are_timed(recording: Reader) -> None:
    calls = [decode(CallTimes, event["times"]) for event in recording.events("times")]
    assert [c.call for c in calls] == [0, 1]
    fused = calls[0].launches[1]
    assert fused.launches == 1
    assert 0 < fused.seconds < 10
    assert fused.bytes_written == 4 * 16 * 4


def test_buffers_live_and_die_on_the_timeline(recording: Reader) -> None:
    calls = [decode(MemoryCall, event) for event in recording.events("memory")]
    call = calls[0]
    assert [(b.buffer, b.bytes, b.born) for b in call.lives] == [("buf0", 256, 0)]
    assert call.lives[0].died is None, "it is returned"
    assert call.timeline[-1][2] == 256
