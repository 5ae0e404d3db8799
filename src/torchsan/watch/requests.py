"""A file in a recording's folder by which a user asks for a check of everything. Importing it imports no torch."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from torchsan.recording import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchsan.recording import Recorder

REQUEST = "check-now"
"""The name of the file. It is removed when it was seen."""
_EVERY = 0.5
"""Seconds between two looks at the folder."""


class Requests:
    """Tells whether somebody asked, by `touch RECORDING/check-now`. A recording in memory is asked by nobody."""

    def __init__(self, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = recorder.path / REQUEST if isinstance(recorder, Writer) else None
        self._clock = clock
        self._next = clock()

    def made(self) -> bool:
        """Whether the file was there. Looks now and then only, so that it can be called often."""
        now = self._clock()
        if self._file is None or now < self._next:
            return False
        self._next = now + _EVERY
        with suppress(OSError):
            self._file.unlink()
            return True
        return False
