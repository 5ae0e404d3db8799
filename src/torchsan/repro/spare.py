"""A Python process that has imported PyTorch ahead of time, and nothing else, for a script that has to fail alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from torchsan.repro.environment import trial_environment
from torchsan.repro.stopped import Stopped
from torchsan.torch_internals.warm import IMPORT_COMPILER

__all__ = ["Spare"]

_WAIT = f"""\
import json, os, runpy, sys
{IMPORT_COMPILER}
order = sys.stdin.readline()
if order:
    os.chdir(json.loads(order))
    sys.argv = ["repro.py"]
    runpy.run_path("repro.py", run_name="__main__")
"""
_OUR_FRAMES = re.compile(r'^  File "<(?:string|frozen runpy)>".*\n(?:    .*\n)*', re.MULTILINE)


class Spare:
    """Starts early, runs one script, and is gone; the next script gets another. After `stop` it raises Stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def start(self) -> None:
        """Begin to import PyTorch, without waiting for it."""
        with self._lock:
            if self._process is None and not self._over:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _WAIT],
                    env=trial_environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # Ctrl-C is for us.
                )

    def run(self, folder: Path, limit: float) -> tuple[int | None, str]:
        """Run `repro.py` of the folder, there: the exit status, None if it took too long, and what was printed."""
        self.start()
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            raise Stopped("interrupted")
        try:
            output, _ = process.communicate(json.dumps(str(folder)) + "\n", timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None, ""
        return process.returncode, _OUR_FRAMES.sub("", output)

    def stop(self) -> None:
        """End it, if it still waits, for good."""
        with self._lock:
            self._over = True
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError, ValueError):
                process.communicate()
