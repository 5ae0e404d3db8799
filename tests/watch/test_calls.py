"""Calls are counted, the checked ones too, and a finding says in which of them it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

import torchsan
from torchsan.options import calls_until
from torchsan.recording import Reader
from torchsan.records import Direction
from torchsan.watch.calls import ProbedProgram, wake_all
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer
from torchsan.watch.pace import MOST_KINDS, Pace


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


class Asked(Observer):
    """Writes down which calls it is asked about, and how many there were."""

    name = "asked"

    def __init__(self, calls: int) -> None:
        self.shown: list[int] = []
        self.made = 0
        self._calls = calls

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        self.shown.append(call)
        return None

    def quiet(self, program: CompiledProgram, call: int) -> int:
        return calls_until(self._calls, call)

    def called(self, program: CompiledProgram, calls: int) -> None:
        self.made += calls


def entry(observer: Observer, **options: Any) -> tuple[ProbedProgram, list[Any]]:
    ran: list[Any] = []
    program: Any = None
    return ProbedProgram(program, ran.append, {}, [observer], lambda *_: None, **options), ran


def test_calls_that_nobody_wants_are_counted_and_shown_to_nobody() -> None:
    observer = Asked(2)
    program, ran = entry(observer)
    for n in range(1000):
        program([n * 0.5])
    program.detach()
    program([0.0])
    assert len(ran) == 1001
    assert observer.made == 1000
    assert observer.shown == [0, 1]


def test_a_call_that_the_user_asks_for_is_shown_as_if_it_were_the_first() -> None:
    observer = Asked(2)
    program, ran = entry(observer)
    for n in range(1000):
        if n == 700:
            wake_all()
        program([n * 0.5])
    program.detach()
    assert observer.shown == [0, 1, 0]
    assert observer.made == len(ran) == 1000


def test_each_set_of_sizes_counts_for_itself_up_to_a_number() -> None:
    observer = Asked(1)
    never = Pace(clock=lambda: 0.0)
    never.spent(1)
    program, ran = entry(observer, pace=never)
    for n in range(1000):
        program([n, 0.5])
    program.detach()
    assert len(ran) == observer.made == 1000
    assert observer.shown.count(0) == MOST_KINDS
    assert len(observer.shown) < 100


def test_other_sets_of_sizes_are_shown_as_new_ones_at_a_pace() -> None:
    observer = Asked(1)
    program, _ = entry(observer, pace=Pace(clock=lambda: 0.0))  # It allows every one.
    for n in range(MOST_KINDS + 1):
        program([n])
    assert observer.shown == [0] * (MOST_KINDS + 1)
