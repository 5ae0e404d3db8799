"""Plants one fault in generated Triton, which is interpreted: what `--load` imports in every trial.

Which one says TORCHSAN_TEST_FAULT. C++ stays what Inductor generates unless the reproducer asks for Triton.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from tests import triton_on_cpu
from tests.planted.faults import planted
from tests.planted.triton_faults import FAULTS

FAULT = next(f for f in FAULTS if f.name == os.environ["TORCHSAN_TEST_FAULT"])
_planted = ExitStack()
_planted.enter_context(triton_on_cpu.enabled(cpu_backend="cpp"))
_planted.enter_context(planted(FAULT))
