"""Runs a child process to its end, whatever that is, and passes on the signals that were meant for it."""

from __future__ import annotations

import json
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

from torchsan.errors import RecordingError
from torchsan.recording import Program
from torchsan.recording.folder import EVENTS
from torchsan.records import Finding, decode

_COUNT = "SELECT count(*), coalesce(sum(json_array_length(body, '$.kernels')), 0) FROM events WHERE kind = 'graph'"
_NEWS = "SELECT id, body FROM events WHERE id > ? AND kind = 'finding' ORDER BY id"


class Progress:
    """Reads the log of a run that another process writes: shows each finding when it is made, and what was compiled.

    Whole lines, few of them, and only when there is news: a line that is drawn anew would garble what the program
    prints to the same terminal.
    """

    def __init__(
        self, folder: Path, stream: TextIO, show_finding: Callable[[Finding], None], every: float | None = 2.0
    ) -> None:
        """Report on the recording in `folder` to `stream`: graphs in at most one line in `every` seconds, or not."""
        self._file = folder / EVENTS
        self._stream = stream
        self._show_finding = show_finding
        self._every = every
        self._connection: sqlite3.Connection | None = None
        self._compiled = (0, 0)
        self._seen = 0
        self._next = 0.0

    def show(self) -> None:
        """Print what there is new to say."""
        # The log may not exist yet, and what cannot be shown now is in the report.
        with suppress(sqlite3.Error, OSError, ValueError, RecordingError):
            if self._connection is None:
                self._connection = sqlite3.connect(f"{self._file.as_uri()}?mode=ro", uri=True, timeout=0)
            for number, body in self._connection.execute(_NEWS, (self._seen,)).fetchall():
                self._seen = number
                self._show_finding(decode(Finding, json.loads(body)))
            if self._every is not None and time.monotonic() >= self._next:
                self._show_compiled(self._connection, self._every)

    def _show_compiled(self, connection: sqlite3.Connection, every: float) -> None:
        graphs, kernels = connection.execute(_COUNT).fetchone()
        if (graphs, kernels) != self._compiled:
            self._compiled = (graphs, kernels)
            self._next = time.monotonic() + every
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

    `inherited` are more descriptors that it gets.
    `progress` is called every `interval` seconds while it runs. Signals are the child's while it lives, and held off
    until the context ends: Ctrl-C, however often, does not cost the report.
    """
    with _passing_signals() as give_child:
        child = subprocess.Popen(list(command), pass_fds=inherited)
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
