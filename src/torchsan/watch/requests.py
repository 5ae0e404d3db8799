"""Users ask for a check of everything while the program runs, by a signal or a file. Importing it imports no torch."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from torchsan.recording import Writer
from torchsan.watch.calls import wake_all

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.watch.observer import Observer

REQUEST = "check-now"
"""The name of the file in the recording's folder. It is removed when it was seen."""
_EVERY = 0.5
"""Seconds between two looks at the folder."""
_ANSWER = "torchsan: the next call of each graph is checked, as you ask\n"


class Requests:
    """Has the next call of every program checked if somebody asks, by SIGUSR1 or by `touch RECORDING/check-now`.

    A recording in memory is asked by the signal alone.
    """

    def __init__(
        self, recorder: Recorder, observers: Iterable[Observer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = recorder.path / REQUEST if isinstance(recorder, Writer) else None
        self._observers = tuple(observers)
        self._clock = clock
        self._next = clock()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Listen to the signal while the context lasts, unless the program has a use for it."""
        number = getattr(signal, "SIGUSR1", None)
        if (
            number is None
            or signal.getsignal(number) is not signal.SIG_DFL
            or threading.current_thread() is not threading.main_thread()
        ):
            yield
            return
        handle = self._signalled  # One object, to be known again.
        signal.signal(number, handle)
        try:
            yield
        finally:
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_DFL)

    def poll(self) -> None:
        """Look for the file. It does so now and then only, so that this can be called often."""
        now = self._clock()
        if self._file is None or now < self._next:
            return
        self._next = now + _EVERY
        with suppress(OSError):
            self._file.unlink()
            self._answer()

    def _signalled(self, *_: object) -> None:
        self._answer()

    def _answer(self) -> None:
        for observer in self._observers:
            observer.asked()
        wake_all()
        # A handler may interrupt a write to the same stream, which raises RuntimeError.
        with suppress(OSError, ValueError, AttributeError, RuntimeError):
            sys.stderr.write(_ANSWER)
            sys.stderr.flush()
