"""Counts the steps of torchsan's own code in every process of a run; Python imports it at start from PYTHONPATH.

`tools/steps.py` sets the two variables it needs: where the package is, and a folder to which each process writes what
it counted when it ends.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "HOUSE_PACKAGE"
FOLDER = "HOUSE_FOLDER"


class Steps:
    """Counts how often control passes from a function in one file of the package to a function in another."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._last: str | None = None
        self.changes: Counter[tuple[str, str]] = Counter()
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        # Bodies of modules and classes are not optimized code: they run once, at import, and are no step of the work.
        if event != "call" or not code.co_flags & CO_OPTIMIZED or not code.co_filename.startswith(self._package):
            return
        file = code.co_filename.removeprefix(self._package)
        if self._last is not None and self._last != file:
            self.changes[self._last, file] += 1
        self._last = file
        self.files.add(file)

    def write(self, folder: str) -> None:
        """Write the counts to a file of this process."""
        sys.setprofile(None)
        changes = [[*pair, count] for pair, count in self.changes.items()]
        text = json.dumps({"changes": changes, "files": sorted(self.files)})
        Path(folder, f"{os.getpid()}.json").write_text(text, encoding="utf-8")


if PACKAGE in os.environ and FOLDER in os.environ:
    _steps = Steps(os.environ[PACKAGE])
    atexit.register(_steps.write, os.environ[FOLDER])
    threading.setprofile(_steps)
    sys.setprofile(_steps)
