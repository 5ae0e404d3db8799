"""What ends the making of a reproducer before it is done."""

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
from torchsan.torch_internals.inductor import IMPORT_COMPILER


class Stopped(Exception):
    """The time is up, or the user pressed Ctrl-C: the best so far is what there is."""


def environment() -> dict[str, str]:
    """For processes that import torchsan and the user's modules from where this process would."""
    package = str(Path(__file__).parents[2])
    paths = [package, str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TORCHSAN_OPTIONS": ""}


def trial_environment() -> dict[str, str]:
    """The same without a pool of compilers, which would take longer to start than one kernel to compile."""
    return environment() | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


# What it runs. Before it imports anything of torchsan it forks the spare, for a script that has to fail alone.
_PROGRAM = f"""\
import ctypes, os, runpy, sys
{IMPORT_COMPILER}
order, orders = os.pipe()
spare = os.fork()
if spare:
    from torchsan.cli._trials import Spare, main
    main(Spare(spare, orders))
else:
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)  # Die with the zygote, whoever ends it.
    os.close(orders)
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    folder = os.read(order, 1 << 16)
    if folder:
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["repro.py"]
        runpy.run_path("repro.py", run_name="__main__")
"""


class TrialServer:
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
        # No daemon: a process that ends in the middle of an import of torch may crash.
        threading.Thread(target=importlib.import_module, args=("torch",)).start()

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=trial_environment(),
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
        process.stdout.close()
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        with self._lock:
            waiting_ones, self._waiting = self._waiting, {}
        for waiting in waiting_ones.values():
            waiting.put(None)
