"""Recordings of compiled programs: one operator changed, and the same program compiled otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor

import torchsan
from torchsan.diff import Judged, Status, compare_recordings
from torchsan.recording import Reader


def record(path: Path, approximate: str, *, scalar: bool = False, train: bool = False) -> Reader:
    """One call of a small model; `scalar` compiles it without vector instructions and with less fusion."""
    torch.manual_seed(0)
    first, norm, last = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        hidden = norm(first(x))
        hidden = torch.nn.functional.gelu(hidden, approximate=approximate)
        return torch.softmax(last(hidden), -1)

    settings = {"cpp.simdlen": 0, "max_fusion_size": 1} if scalar else {}
    with (
        torch.set_grad_enabled(train),
        inductor.patch(settings),
        torchsan.session(check="memory", watch="save", out=str(path)),
    ):
        loss = torch.compile(model)(torch.randn(8, 32)).square().sum()
        if train:
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    return Reader(path)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return record(tmp_path_factory.mktemp("runs") / "exact", "none")


GELU = "hidden = torch.nn.functional.gelu(hidden, approximate=approximate)"


def test_the_operator_that_was_changed_is_the_first_difference(exact: Reader, tmp_path: Path) -> None:
    diff = compare_recordings(exact, record(tmp_path / "tanh", "tanh"))
    assert diff.status is Status.DIFFERENT
    assert diff.first is not None
    assert [s.code for s in diff.first.source] == [GELU]
    judged = {v.name: v.judged for v in diff.values}
    assert [n for n, j in judged.items() if j is Judged.DIFFERENT] == [diff.first.name]
    assert Judged.FOLLOWS in judged.values()


def test_the_same_program_compiled_otherwise_is_the_same_up_to_rounding(exact: Reader, tmp_path: Path) -> None:
    diff = compare_recordings(exact, record(tmp_path / "scalar", "none", scalar=True))
    assert diff.status is Status.ROUNDING
    assert diff.compared["rounding"] > 0
    assert diff.compared["undecided"] == 0


@pytest.mark.slow
def test_a_step_with_gradients(tmp_path: Path) -> None:
    one = record(tmp_path / "one", "none", train=True)
    same = compare_recordings(one, record(tmp_path / "again", "none", train=True))
    assert same.status is Status.SAME
    assert set(same.how) == {"contents"}
    assert not (same.kernels or same.operators or same.metadata or same.memory)
    scalar = compare_recordings(one, record(tmp_path / "scalar", "none", scalar=True, train=True))
    assert scalar.status is Status.ROUNDING
    tanh = compare_recordings(one, record(tmp_path / "tanh", "tanh", train=True))
    assert tanh.first is not None
    assert (tanh.first.a.graph, [s.code for s in tanh.first.source]) == ("0 forward", [GELU])
    # What gelu's own gradient computes differs by itself; what comes after it follows.
    backward = {v.judged for v in tanh.values if v.a.graph == "0 backward"}
    assert {Judged.DIFFERENT, Judged.FOLLOWS} <= backward
