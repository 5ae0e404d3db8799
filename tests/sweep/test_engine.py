"""Programs in processes of their own: however they end, the sweep goes on and says how."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.sweep.made_up import KEY
from torchsan.repro.trial_server import TrialServer
from torchsan.sweep.engine import Judge, Setting, run_locally
from torchsan.sweep.programs import Program
from torchsan.sweep.results import Outcome, Result

_COMPILED = "import torch\nf = torch.compile(lambda x: x.sin() + {})\nf(torch.ones(4))\n"
_DIES_COMPILED = """
import os, signal, torch
seen = []
def backend(gm, inputs):
    seen.append(1)
    return gm.forward
torch.compile(lambda x: x + 1, backend=backend)(torch.ones(4))
if seen:
    {}
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with TrialServer() as server:
        yield Judge(server, Setting(key=KEY, checks=("values",), seconds=100, memory=8 << 30))


def program(text: str) -> Program:
    return Program(name="it", text=text)


def test_a_clean_program_is_judged_and_says_what_it_reached(judge: Judge) -> None:
    result = judge(program(_COMPILED.format(1)))
    assert (result.outcome, result.findings, result.reasons) == (Outcome.CLEAN, (), ())
    assert result.buffers_checked == 1
    assert {"inference fused sin", "inference fused add", "fused add sin"} <= set(result.covers)


@pytest.mark.parametrize(
    ("text", "outcome", "eagerly"),
    [
        ("raise ValueError('by itself')", Outcome.INVALID, True),
        ("import os\nos.kill(os.getpid(), 4)", Outcome.CRASHED, True),
        (_DIES_COMPILED.format("os.kill(os.getpid(), signal.SIGILL)"), Outcome.CRASHED, False),
        (_DIES_COMPILED.format("raise ValueError('only compiled')"), Outcome.FAILED, False),
        (_DIES_COMPILED.format("bytearray(9 << 30)"), Outcome.OUT_OF_MEMORY, False),
        ("x = 1", Outcome.INCOMPLETE, False),
    ],
)
def test_however_a_program_ends_is_a_result(judge: Judge, text: str, outcome: Outcome, eagerly: bool) -> None:
    result = judge(program(text))
    assert (result.outcome, result.eagerly) == (outcome, eagerly)
    assert (result.signal == signal.SIGILL) == (outcome is Outcome.CRASHED)
    assert bool(result.output) == (outcome in (Outcome.INVALID, Outcome.FAILED, Outcome.OUT_OF_MEMORY))
    assert result.reasons


def test_a_program_that_does_not_end_is_ended(judge: Judge) -> None:
    soon = Judge(judge.server, Setting(key=KEY, checks=(), seconds=2))
    result = soon(program("while True: pass"))
    assert (result.outcome, result.eagerly) == (Outcome.HUNG, True)


def test_what_comes_next_may_depend_on_what_came_before() -> None:
    taken: list[int] = []
    seen: list[Result] = []

    def programs() -> Iterator[Program]:
        for n in range(4):
            taken.append(n)
            yield program(f"import sys\nsys.exit({n})")

    setting = Setting(key=KEY, checks=(), seconds=60)
    for result in run_locally(programs(), setting, 2):
        seen.append(result)
        assert len(taken) <= len(seen) + 2, "no more is taken than there is room for"
    assert len({r.address for r in seen}) == 4
