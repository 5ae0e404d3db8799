"""What a process leaves in memory that it shares with another, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchsan
from torchsan.recording.flight import in_flight, shared_page, was_started
from torchsan.records import Direction, GraphId, InFlight

PROGRAM = """
import os, sys, threading
from torchsan.recording.flight import CHECKING, NOTHING, RUNNING, Flight
from torchsan.records import Direction, GraphId, GraphRef
before = set(os.listdir("/proc/self/fd"))
flight = Flight(int(sys.argv[1]))
assert sys.argv[1] not in os.listdir("/proc/self/fd")
flight.started()
both = (Direction.FORWARD, Direction.BACKWARD)
forward, backward = (flight.of_call(GraphRef(id=GraphId(3), direction=d), 7) for d in both)
forward(RUNNING, 11)
def come_and_go():
    backward(CHECKING, 2)
    backward(NOTHING, 0)
def check():
    with flight.checking(GraphRef(id=GraphId(4), direction=Direction.INFERENCE), 8):
        pass
    kept.append(flight.checking(GraphRef(id=GraphId(5), direction=Direction.INFERENCE), 9))
    kept[0].__enter__()
kept = []
for target in (come_and_go, lambda: backward(CHECKING, 5), check):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
if os.fork() == 0:
    forward(NOTHING, 0)
    os._exit(0)
os.wait()
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the descriptors of a process are counted there")
def test_what_each_thread_did_when_the_process_was_killed_is_known() -> None:
    page = shared_page()
    assert page is not None
    assert not was_started(page)
    assert list(in_flight(page)) == []
    paths = str(Path(torchsan.__file__).parents[1])
    words = [sys.executable, "-c", PROGRAM, str(page)]
    done = subprocess.run(words, pass_fds=[page], env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert done.returncode == -9
    assert was_started(page)
    assert list(in_flight(page)) == [
        InFlight(graph=GraphId(3), direction=Direction.FORWARD, nth=11, call=7, checking=False),
        InFlight(graph=GraphId(3), direction=Direction.BACKWARD, nth=5, call=7, checking=True),
        InFlight(graph=GraphId(5), direction=Direction.INFERENCE, nth=None, call=9, checking=True),
    ]
    os.close(page)


def test_a_page_that_the_program_has_overwritten_says_nothing() -> None:
    page = shared_page()
    assert page is not None
    os.pwrite(page, b"\x01\xff" * 2048, 0)
    assert list(in_flight(page)) == []
    os.close(page)
