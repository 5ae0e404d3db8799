"""Runs a child process to its end, whatever that is, and passes on the signals that were meant for it."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from torchsan.cli.started import in_the_child
from torchsan.errors import RecordingError
from torchsan.recording import Program
from torchsan.recording.folder import EVENTS
from torchsan.records import Finding, Forecast, decode
from torchsan.report.findings import count

_COUNT = "SELECT count(*), coalesce(sum(json_array_length(body, '$.kernels')), 0) FROM events WHERE kind = 'graph'"
_NEWS = "SELECT id, kind, body FROM events WHERE id > ? AND kind IN ('finding', 'forecast') ORDER BY id"


class Progress:
    """Reads the log of a run that another process writes: shows each finding when it is made, and what was compiled.

    Whole lines, few of them, and only when there is news: a line that is drawn anew would garble what the program
    prints to the same terminal.
    """

    def __init__(
        self,
        folder: Path,
        stream: TextIO,
        show_finding: Callable[[Finding], None],
        every: float | None = 2.0,
        foretell: Callable[[Forecast], None] | None = None,
    ) -> None:
        """Report on the recording in `folder` to `stream`: graphs in at most one line in `every` seconds, or not."""
        self._foretell = foretell
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
            for number, kind, body in self._connection.execute(_NEWS, (self._seen,)).fetchall():
                self._seen = number
                if kind == "finding":
                    self._show_finding(decode(Finding, json.loads(body)))
                elif self._foretell is not None:
                    self._foretell(decode(Forecast, json.loads(body)))
            if self._every is not None and time.monotonic() >= self._next:
                self._show_compiled(self._connection, self._every)

    def _show_compiled(self, connection: sqlite3.Connection, every: float) -> None:
        graphs, kernels = connection.execute(_COUNT).fetchone()
        if (graphs, kernels) != self._compiled:
            self._compiled = (graphs, kernels)
            self._next = time.monotonic() + every
            self._stream.write(f"torchsan: compiled {count(graphs, 'graph')}, {count(kernels, 'kernel')} so far\n")
            self._stream.flush()

    def close(self) -> None:
        """Let go of the log."""
        if self._connection is not None:
            self._connection.close()


_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT")
_MEANWHILE = 0.25
"""Seconds within which a signal that is sent to a process group has reached all of it."""


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
    until the context ends: Ctrl-C, however often, does not cost the report. The child gets each signal once.
    """
    with _passing_signals() as give_child:
        child = subprocess.Popen(list(command), pass_fds=inherited, preexec_fn=in_the_child())
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
        elif not sent_to_all(number) and child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def give_child(started: subprocess.Popen[bytes]) -> None:
        nonlocal child
        child = started
        for number in early:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    # What was ignored when we started, as under nohup, the child inherits as ignored.
    numbers = [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    with _witness(numbers) as sent_to_all:
        before = {number: signal.signal(number, forward) for number in numbers}
        try:
            yield give_child
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)


@contextmanager
def _witness(numbers: Sequence[int]) -> Iterator[Callable[[int], bool]]:
    """Give what tells of a signal that just came whether it was sent to all of our process group, and so to the child.

    Terminals, shells, `timeout` and schedulers send to groups, others to one process, and the signal looks the same. A
    process that does nothing else says whether it got it too.
    """
    told, tell = os.pipe()
    lives, lifeline = os.pipe()
    try:
        pid = os.fork()
    except OSError:  # There may be no more processes: then each signal is passed on.
        pid = -1
    if pid == 0:
        os.close(lifeline)
        _tell(numbers, tell, lives)
    os.close(tell)
    os.close(lives)
    os.set_blocking(told, False)
    seen: Counter[int] = Counter()

    def sent_to_all(number: int) -> bool:
        end = time.monotonic() + _MEANWHILE
        while not seen[number] and (left := end - time.monotonic()) > 0 and select.select([told], [], [], left)[0]:
            # The handler of a signal that comes right here asks the same, and may have read all that there is.
            with suppress(BlockingIOError):
                seen.update(os.read(told, 64))
        found = seen[number] > 0
        seen[number] -= found
        return found

    try:
        yield sent_to_all
    finally:
        os.close(lifeline)
        os.close(told)
        if pid > 0:
            os.kill(pid, signal.SIGKILL)  # It may be stopped.
            os.waitpid(pid, 0)


def _tell(numbers: Sequence[int], tell: int, lives: int) -> NoReturn:
    """Write the numbers of signals as they come, for as long as the other process lives."""
    try:
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda _number, _frame: None)
        os.read(lives, 1)
    finally:
        os._exit(0)


@contextmanager
def cleaned_up() -> Iterator[None]:
    """End by SIGTERM as by an error: with the processes and folders gone that the work needs."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # Not in the main thread: whoever called has to see to it.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
