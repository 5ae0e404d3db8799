"""What this machine and its PyTorch can and cannot do, found out before the tests run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from torchsan.cli.doctor import matmul_dies
from torchsan.report.verdict import WITHOUT_AMX
from torchsan.torch_internals.seams import torch_version
from torchsan.torch_internals.tried import SWITCH

CACHE = "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT"
"""Whether Inductor keeps compiled graphs. Tests of caches set it to 1, with a folder of their own."""


def advertises_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor says that it has the instructions."""
    try:
        return "amx_bf16" in cpuinfo.read_text()
    except OSError:
        return False


def is_fixed(since: str) -> bool:
    """Whether the PyTorch that is here is `since` or newer: a bug that was fixed in that version is not in it."""
    here, there = (tuple(map(int, re.findall(r"\d+", version)[:2])) for version in (torch_version() or "0", since))
    return here >= there


def prepare() -> str | None:
    """Set what the tests, and all that they start, need on this machine. Return a line that says so, or None."""
    os.environ.setdefault(SWITCH, "off")  # Or else the first program of a new PyTorch would be slowed down by it.
    # Planted faults are compiled like any other code: what a cache keeps of one would be given to the next test.
    os.environ[CACHE] = "0"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # What it is; Triton 3.9 warns that it will change.
    if WITHOUT_AMX.keys() & os.environ.keys() or not advertises_amx() or not matmul_dies():
        return None
    os.environ.update(WITHOUT_AMX)
    settings = " ".join(f"{name}={value}" for name, value in WITHOUT_AMX.items())
    return f"AMX is advertised here and does not run (SIGILL): testing with {settings}"
