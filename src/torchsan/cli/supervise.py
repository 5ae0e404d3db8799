"""Runs a child process to its end, whatever that is, and passes on the signals that were meant for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from torchsan.recording import Program

_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_THE_TERMINAL = ("SIGINT", "SIGQUIT")


@contextmanager
def supervised(command: Sequence[str], progress: Callable[[], None] | None, interval: float = 0.5) -> Iterator[Program]:
    """Run `command` with this process's own stdin, stdout, stderr and environment, and give how it ended.

    `progress` is called every `interval` seconds while it runs. Signals are the child's while it lives, and held off
    until the context ends: Ctrl-C, however often, does not cost the report.
    """
    with _passing_signals() as give_child:
        child = subprocess.Popen(list(command))
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
