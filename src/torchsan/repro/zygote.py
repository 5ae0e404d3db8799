"""The process that forks trials: it imports PyTorch once, and each trial has it at hand."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from torchsan.errors import InternalError

__all__ = ["Stopped", "Zygote", "environment"]


class Stopped(Exception):
    """The time is up, or the user pressed Ctrl-C: the best so far is what there is."""


def environment() -> dict[str, str]:
    """The environment of processes that import torchsan and the user's modules from where this process would."""
    package = str(Path(__file__).parents[2])
    paths = [package, str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TORCHSAN_OPTIONS": ""}


class Zygote:
    """A process that forks trials, for several threads at once. When it dies, its trials do, and a new one starts.

    It starts when it is asked to get ready, or for the first trial, and ends with the context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._ids = itertools.count()
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def get_ready(self) -> None:
        """Import PyTorch, there and here, without waiting for it: it will be needed."""
        with self._lock:
            if self._process is None and not self._over:
                self._start()
        # No daemon: a process that ends in the middle of this import may crash.
        threading.Thread(target=importlib.import_module, args=("torch",)).start()

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", "from torchsan.cli._trials import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment() | {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for us; the trials are ended, not interrupted.
        )
        self._process = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one request to its end. Raise Stopped when it is all over, InternalError if no process can be had."""
        for _ in range(2):
            answer: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
            with self._lock:
                if self._over:
                    raise Stopped("interrupted")
                if self._process is None or self._process.poll() is not None:
                    self._start()
                assert self._process is not None
                assert self._process.stdin is not None
                id_ = next(self._ids)
                self._waiting[id_] = answer
                with suppress(OSError, ValueError):
                    self._process.stdin.write(json.dumps(request | {"id": id_}) + "\n")
                    self._process.stdin.flush()
            found = answer.get()
            if found is not None:
                return found
        raise InternalError("no process for trials can be started; see `torchsan doctor`", slug="internal-error")

    def stop(self) -> None:
        """End it, and the trials it runs, for good."""
        with self._lock:
            self._over = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"], None)
            if waiting is not None:
                waiting.put(answer)
        process.wait()
        with self._lock:
            waiting_ones, self._waiting = self._waiting, {}
        for waiting in waiting_ones.values():
            waiting.put(None)
