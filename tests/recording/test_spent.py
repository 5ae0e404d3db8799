"""Time is charged once, to the innermost stretch, and added up by part, graph and launch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from torchsan.recording import spent as module
from torchsan.recording.spent import COMPILE, OWN, Ledger, charge, charged, spent
from torchsan.records import Direction, GraphCost, GraphId, GraphRef, LaunchCost, decode, encode
from torchsan.records.cost import RunCost

REF = GraphRef(id=GraphId(3), direction=Direction.BACKWARD)


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def ledger(clock: Clock) -> Iterator[Ledger]:
    ledger = Ledger(clock.perf_counter)
    ledger.open()
    yield ledger
    ledger.close()


def test_what_lies_inside_another_stretch_counts_for_the_inner_one(ledger: Ledger, clock: Clock) -> None:
    clock.now += 8
    with spent(COMPILE):
        clock.now += 1
        with spent("stages"):
            clock.now += 2
        with spent("times"), spent("values check"):
            clock.now += 4
    cost = ledger.close()
    assert cost.seconds == 15
    assert cost.parts == {COMPILE: 1, "stages": 2, OWN: 0, "values": 4}
    assert cost.later == {}


def test_an_error_ends_a_stretch(ledger: Ledger, clock: Clock) -> None:
    with pytest.raises(ValueError, match="mine"), spent("values"):
        clock.now += 1
        raise ValueError("mine")
    clock.now += 2
    assert ledger.close().parts == {"values": 1}


def test_launches_and_graphs_have_their_share_and_later_calls_theirs(ledger: Ledger, clock: Clock) -> None:
    for nth, later in ((5, False), (5, True), (2, False), (None, True)):
        with spent("memory", REF, nth, later=later):
            clock.now += 1
    cost = ledger.close()
    launches = (LaunchCost(nth=2, parts={"memory": 1}), LaunchCost(nth=5, parts={"memory": 2}))
    assert cost.graphs == (GraphCost(graph=REF.id, direction=REF.direction, parts={"memory": 4}, launches=launches),)
    assert cost.later == {"memory": 2}
    assert decode(RunCost, encode(cost)) == cost


def test_threads_do_not_lie_inside_each_other(ledger: Ledger) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with spent("values"):
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    with spent("stages"):
        pass
    go_on.set()
    thread.join()
    assert set(ledger.close().parts) == {"values", "stages"}


def test_functions_and_estimates_are_charged_as_well(ledger: Ledger, clock: Clock) -> None:
    def work(by: int) -> int:
        clock.now += by
        return by + 1

    assert charged("stages", work, later=True)(3) == 4
    charge(0.5, "metadata check")
    cost = ledger.close()
    assert cost.parts == {"stages": 3, "metadata": 0.5}
    assert cost.later == {"stages": 3}


def test_nothing_is_counted_after_the_end(ledger: Ledger, clock: Clock) -> None:
    ledger.close()
    with spent("values"):
        clock.now += 1
    assert ledger.close().parts == {}
