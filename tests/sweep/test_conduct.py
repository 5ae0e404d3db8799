"""How a sweep is carried out, with an engine that runs nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweep.made_up import KEY, finding, result
from torchsan.sweep.conduct import Progress, conduct
from torchsan.sweep.programs import Program
from torchsan.sweep.results import Result, Results

_KNOWN = {name: result(name, *([finding()] if name == "wrong" else [])) for name in ("a", "wrong", "b")}
_PROGRAMS = [r.program for r in _KNOWN.values()]


class Engine:
    """Says what is known, and counts; stops before the program `until`."""

    def __init__(self, until: str | None = None) -> None:
        self.ran: list[str] = []
        self._until = until

    def __call__(self, programs: Iterator[Program]) -> Iterator[Result]:
        for program in programs:
            if program.name == self._until:
                raise KeyboardInterrupt
            self.ran.append(program.name)
            yield _KNOWN[program.name]


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    with Results(tmp_path / "out") as results:
        yield results


def test_what_has_a_result_is_not_run_again(results: Results) -> None:
    engine, silent = Engine(until="b"), Progress(None, 3, None)
    stopped = conduct(_PROGRAMS, KEY, results, engine, silent)
    assert (stopped.interrupted, [r.program.name for r in stopped.results]) == (True, ["a", "wrong"])
    engine = Engine()
    whole = conduct(_PROGRAMS, KEY, results, engine, silent)
    assert engine.ran == ["b"]
    assert (whole.reused, len(whole.results), whole.interrupted) == (2, 3, False)


def test_it_stops_when_the_time_is_up(results: Results) -> None:
    done = conduct(_PROGRAMS, KEY, results, Engine(), Progress(None, 3, None), seconds=-1)
    assert (done.results, done.interrupted) == ([], False)


def test_progress_has_rate_and_time_left() -> None:
    text = Progress(io.StringIO(), 100, None).text(30, 10, 2, 60.0)
    assert text == "torchsan: 30 of 100 programs, 20.0 a minute, 2 finds, about 4 min left"
    assert "about 30 s left" in Progress(io.StringIO(), None, 90.0).text(30, 10, 2, 60.0)
