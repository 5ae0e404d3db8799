"""How this process was started: with streams closed, with SIGCHLD ignored. Whoever did that gets a program in the same
state, and torchsan one that it can work in.

Importing it imports next to nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress


def stand_firm() -> None:
    """Make a state of this process in which files and children are what they seem.

    A file that is opened gets the lowest free number: that of a closed stream, to which a child would print. And where
    SIGCHLD is ignored, the system forgets the status of children.
    """
    global _ignored  # There is one process.
    for number in (0, 1, 2):
        with suppress(OSError):
            _occupy(number)
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        _ignored = True
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


_ignored = False


def _occupy(number: int) -> None:
    """Open nothing under this number if it is free. A child does not inherit it."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:  # Another thread was faster.
            os.close(opened)


def in_the_child() -> Callable[[], None] | None:
    """What a child has to do to find itself as it would without torchsan, if there is anything."""
    return _ignore_children if _ignored else None


def _ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
