"""Recordings of compiled programs: one operator changed, and the same program compiled otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor

import torchsan
from torchsan.diff import Judged, Status, compare_recordings
from torchsan.recording import Reader


def record(path: Path, approximate: str, *, scalar: bool = False) -> Reader:
    """One step of a small model with gradients; `scalar` compiles it without vector instructions and with less fusion."""
    torch.manual_seed(0)
    first, norm, last = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        hidden = norm(first(x))
        hidden = torch.nn.functional.gelu(hidden, approximate=approximate)
        return torch.softmax(last(hidden), -1)

    settings = {"cpp.simdlen": 0, "max_fusion_size": 1} if scalar else {}
    with inductor.patch(settings), torchsan.session(check="memory", watch="save", out=str(path)):
        torch.compile(model)(torch.randn(8, 32)).square().sum().backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    return Reader(path)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    folder = tmp_path_factory.mktemp("recordings")
    return {
        "exact": record(folder / "exact", "none"),
        "again": record(folder / "again", "none"),
        "scalar": record(folder / "scalar", "none", scalar=True),
        "tanh": record(folder / "tanh", "tanh"),
    }


def test_the_operator_that_was_changed_is_the_first_difference(recordings: dict[str, Reader]) -> None:
    diff = compare_recordings(recordings["exact"], recordings["tanh"])
    assert diff.status is Status.DIFFERENT
    assert diff.first is not None
    assert diff.first.a.graph == "0 forward"
    assert [s.code for s in diff.first.source] == ["hidden = torch.nn.functional.gelu(hidden, approximate=approximate)"]
    forward = {v.name: v.judged for v in diff.values if v.a.graph == "0 forward"}
    assert [n for n, j in forward.items() if j is Judged.DIFFERENT] == [diff.first.name]
    # In the backward, what gelu's own gradient computes differs by itself; what comes after it follows.
    backward = {v.name: v.judged for v in diff.values if v.a.graph == "0 backward"}
    assert {Judged.DIFFERENT, Judged.FOLLOWS} <= set(backward.values())


def test_the_same_program_compiled_otherwise_is_the_same_up_to_rounding(recordings: dict[str, Reader]) -> None:
    diff = compare_recordings(recordings["exact"], recordings["scalar"])
    assert diff.status is Status.ROUNDING
    assert diff.compared["rounding"] > 0
    assert diff.compared["undecided"] == 0


def test_the_same_program_again_is_the_same(recordings: dict[str, Reader]) -> None:
    diff = compare_recordings(recordings["exact"], recordings["again"])
    assert diff.status is Status.SAME
    assert set(diff.how) == {"contents"}
    assert not (diff.kernels or diff.operators or diff.metadata or diff.memory)
