"""The environment of the processes that reproducers are tried in."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment", "trial_environment"]


def environment() -> dict[str, str]:
    """For processes that import torchsan and the user's modules from where this process would."""
    package = str(Path(__file__).parents[2])
    paths = [package, str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TORCHSAN_OPTIONS": ""}


def trial_environment() -> dict[str, str]:
    """The same without a pool of compilers, which would take longer to start than one kernel to compile."""
    return environment() | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
