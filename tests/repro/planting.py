"""Plants one fault for good, for as long as the process lives: what `--load` imports in every trial.

Which one says TORCHSAN_TEST_FAULT. The program of the fault is not run.
"""

from __future__ import annotations

import os

from tests.planted.faults import FAULTS, planted

FAULT = next(f for f in FAULTS if f.name == os.environ["TORCHSAN_TEST_FAULT"])
_planted = planted(FAULT)
_planted.__enter__()
