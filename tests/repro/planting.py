"""Plants one fault for good, for as long as the process lives: what `--load` imports in every trial.

Which one says TORCHSAN_TEST_FAULT. The program of the fault is not run. A reproducer of a backward kernel is a program
of its own, so the fault is planted in either direction.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack

from tests.planted.faults import FAULTS, planted

FAULT = next(f for f in FAULTS if f.name == os.environ["TORCHSAN_TEST_FAULT"])
_planted = ExitStack()
for _backward in (False, True):
    _planted.enter_context(planted(dataclasses.replace(FAULT, backward=_backward)))
