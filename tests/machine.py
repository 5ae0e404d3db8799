"""What this machine cannot do, found out before the tests run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REMEDY = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Keeps oneDNN from the AMX instructions."""

_MATMUL = "import torch; t = torch.ones(64, 64, dtype=torch.bfloat16); t @ t"


def advertises_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor says that it has the instructions."""
    try:
        return "amx_bf16" in cpuinfo.read_text()
    except OSError:
        return False


def matmul_dies(command: Sequence[str] = (sys.executable, "-c", _MATMUL)) -> bool:
    """Whether a bfloat16 matmul of plain PyTorch ends its process with SIGILL: some virtual machines advertise
    instructions that they do not run."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=120)
    return done.returncode == -signal.SIGILL


def prepare() -> str | None:
    """Set what the tests, and all that they start, need on this machine. Return a line that says so, or None."""
    if REMEDY.keys() & os.environ.keys() or not advertises_amx() or not matmul_dies():
        return None
    os.environ.update(REMEDY)
    settings = " ".join(f"{name}={value}" for name, value in REMEDY.items())
    return f"AMX is advertised here and does not run (SIGILL): testing with {settings}"
