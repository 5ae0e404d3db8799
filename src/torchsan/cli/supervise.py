"""Runs a child process to its end, whatever that is, and passes on the signals that were meant for it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from torchsan.recording import Program
from torchsan.recording.folder import EVENTS

_COUNT = "SELECT count(*), coalesce(sum(json_array_length(body, '$.kernels')), 0) FROM events WHERE kind = 'graph'"


class Progress:
    """Reads the log of a run that another process writes.

    Whole lines, few of them, and only when there is news: a line that is drawn anew would garble what the program
    prints to the same terminal.
    """

    def __init__(self, folder: Path, stream: TextIO, every: float = 2.0) -> None:
        """Report on the recording in `folder` to `stream`, at most one line in `every` seconds."""
        self._file = folder / EVENTS
        self._stream = stream
        self._every = every
        self._connection: sqlite3.Connection | None = None
        self._shown = (0, 0)
        self._next = 0.0

    def show(self) -> None:
        """Print a line if there is something new to say."""
        if time.monotonic() < self._next:
            return
        with suppress(sqlite3.Error, OSError):  # The log may not exist yet, and nothing depends on this line.
            if self._connection is None:
                self._connection = sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=0)
            graphs, kernels = self._connection.execute(_COUNT).fetchone()
            if (graphs, kernels) != self._shown:
                self._shown = (graphs, kernels)
                self._next = time.monotonic() + self._every
                self._stream.write(f"torchsan: graph {graphs}, {kernels} kernels so far\n")
                self._stream.flush()

    def close(self) -> None:
        """Let go of the log."""
        if self._connection is not None:
            self._connection.close()


_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_THE_TERMINAL = ("SIGINT", "SIGQUIT")


@contextmanager
def supervised(
    command: Sequence[str],
    progress: Callable[[], None] | None,
    interval: float = 0.5,
    *,
    inherited: Sequence[int] = (),
) -> Iterator[Program]:
    """Run `command` with this process's own stdin, stdout, stderr and environment, and give how it ended.

    `inherited` are more descriptors that it gets. They are closed here.
    `progress` is called every `interval` seconds while it runs. Signals are the child's while it lives, and held off
    until the context ends: Ctrl-C, however often, does not cost the report.
    """
    with _passing_signals() as give_child:
        child = subprocess.Popen(list(command), pass_fds=inherited)
        for number in inherited:
            os.close(number)
        give_child(child)
        while True:
            try:
                code = child.wait(interval if progress is not None else None)
                break
            except subprocess.TimeoutExpired:
                assert progress is not None
                progress()
        yield Program(exit=code) if code >= 0 else Program(signal=-code)


@contextmanager
def _passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        elif child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def from_terminal(number: int, frame: FrameType | None) -> None:
        if not _terminal_reaches_child():
            forward(number, frame)

    def give_child(started: subprocess.Popen[bytes]) -> None:
        nonlocal child
        child = started
        for number in early:
            forward(number, None)

    before = {}
    for names, handler in ((_FORWARDED, forward), (_FROM_THE_TERMINAL, from_terminal)):
        for number in (getattr(signal, n) for n in names if hasattr(signal, n)):
            # What was ignored when we started, as under nohup, the child inherits as ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield give_child
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _terminal_reaches_child() -> bool:
    """Whether the terminal sends Ctrl-C to our whole process group, and so to the child, by itself."""
    for stream in (sys.__stdin__, sys.__stderr__, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):
            if stream is not None and stream.isatty():
                return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    return False
