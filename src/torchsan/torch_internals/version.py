"""The door: which PyTorch torchsan can instrument. Needs no torch, so that a program without it starts at once."""

from __future__ import annotations

import importlib.metadata
import re

from torchsan.errors import UnsupportedTorchError

OLDEST = (2, 13)
TESTED = ((2, 13),)


def torch_version() -> str | None:
    """Return the installed PyTorch's version, or None if there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version() -> str | None:
    """Raise UnsupportedTorchError if this PyTorch cannot be instrumented; return a caveat if it is untested."""
    version = torch_version()
    if version is None:
        raise UnsupportedTorchError(
            "PyTorch is not installed in this environment; install torch>=2.13 beside torchsan", slug="no-torch"
        )
    match = re.match(r"(\d+)\.(\d+)", version)
    release = (int(match[1]), int(match[2])) if match else (0, 0)
    if release < OLDEST:
        raise UnsupportedTorchError(
            f"PyTorch {version} is too old for torchsan; it needs 2.13 or newer: pip install -U 'torch>=2.13'",
            slug="torch-too-old",
        )
    if release in TESTED:
        return None
    return f"PyTorch {version} is newer than what torchsan is tested with (2.13); what it cannot observe is skipped"
