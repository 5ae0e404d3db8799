"""A workload in a process of its own, plainly or in a session, so that two of them can take turns."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import torchsan

__all__ = ["Block", "Step", "Worker"]

Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some steps: what each took on the clock and of the processor, in seconds; and the process's peak memory, in MB.

    `recorded` are the bytes of the recording, 0 without one.
    """

    wall: list[float]
    processor: list[float]
    megabytes: float
    recorded: int


class Worker:
    """A process with a workload, warmed up. Used as a context manager."""

    def __init__(self, make: Callable[[], Step], warm: int, options: Mapping[str, Any] | None) -> None:
        """`make` gives a step, and is a function that the other process can import; `options` are those of a session,
        or None for none."""
        context = multiprocessing.get_context("spawn")
        self._ask, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, warm, options, theirs))
        self._process.start()
        theirs.close()
        self._ask.recv()

    def block(self, steps: int) -> Block:
        """Take so many steps."""
        self._ask.send(steps)
        block: Block = self._ask.recv()
        return block

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask.close()
        self._process.join()


def _serve(make: Callable[[], Step], warm: int, options: Mapping[str, Any] | None, end: Connection) -> None:
    if options is None:
        _blocks(make, warm, end, None)
        return
    with tempfile.TemporaryDirectory() as folder, torchsan.session(out=f"{folder}/run", **options) as run:
        _blocks(make, warm, end, run.path)
    errors = [f.message for f in run.findings if f.severity == "error"]
    assert not errors, errors


def _blocks(make: Callable[[], Step], warm: int, end: Connection, recording: Path | None) -> None:
    torch.set_num_threads(1)  # Threads that wait for each other would be most of the time.
    step = make()
    for _ in range(warm):
        step()
    end.send("ready")
    while True:
        try:
            steps = end.recv()
        except EOFError:
            return
        wall, processor = [], []
        for _ in range(steps):
            start, used = time.perf_counter(), time.process_time()
            step()
            wall.append(time.perf_counter() - start)
            processor.append(time.process_time() - used)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        files = [f for f in recording.rglob("*") if f.is_file()] if recording is not None else []
        recorded = sum(f.stat().st_size for f in files)
        end.send(Block(wall=wall, processor=processor, megabytes=peak, recorded=recorded))
