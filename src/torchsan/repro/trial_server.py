"""Runs trials, each in a fresh process, through a server process that has imported PyTorch once.

Importing it imports no torch.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from torchsan.errors import InternalError
from torchsan.torch_internals.inductor import COMPILER_MODULES

MODULES = "TORCHSAN_TRIAL_MODULES"
_PROCESS = str(Path(__file__).with_name("_trial_process.py"))


class Stopped(Exception):
    """The time is up, or the user pressed Ctrl-C: the best so far is what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One trial, in `folder`, where its output goes too. `words` are the script and its arguments.

    `work` is "script" (run it, under torchsan if there are checks), "eager" (run it, and compile nothing), "alone" (run
    it in a process that never imported torchsan) or "evaluate" (compute the nodes of `exhibit.json`). `paths` are
    further folders with modules; `memory` is how many bytes of its own it may have, 0 for as many as there are.
    """

    work: str
    folder: str
    timeout: float
    words: tuple[str, ...] = ("repro.py",)
    check: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a trial ended: its status, as `subprocess` has it, and whether it had to be ended."""

    status: int
    timeout: bool


def environment() -> dict[str, str]:
    """For processes that import torchsan from where this process does. The current folder is not among the places:

    it may be a recording that somebody sent, with files in it that are called as modules are.
    """
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TORCHSAN_OPTIONS": ""}


def _trial_environment(modules: str, *, caches: bool) -> dict[str, str]:
    """The same without a pool of compilers, which would take longer to start than one kernel to compile."""
    own = {"TORCHINDUCTOR_COMPILE_THREADS": "1", MODULES: modules}
    return environment() | own | ({} if caches else {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})


class TrialServer:
    """A process that forks trials, for several threads at once. When it dies, its trials do, and a new one starts.

    It starts when it is asked to get ready, or for the first trial, and ends with the context. Trials find modules in
    the folder `modules`, after all others. It imports PyTorch's compiler and the modules of `warm` before it forks.
    Without `caches` all is compiled anew: the key of a compile cache does not tell a changed compiler from PyTorch's.
    """

    def __init__(self, modules: str = "", warm: Sequence[str] = (), *, caches: bool = True) -> None:
        self._modules = modules
        self._warm = tuple(warm)
        self._caches = caches
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End it, and the trials it runs, for good."""
        with self._lock:
            self._over = True
            if self._process is not None and self._control is not None:
                self._process.kill()
                self._process.wait()
                self._control.close()

    def get_ready(self) -> None:
        """Import PyTorch, there and here, without waiting for it: it will be needed."""
        with self._lock:
            if not self._over:
                self._started()
        # No daemon: a process that ends in the middle of an import of torch may crash.
        threading.Thread(target=importlib.import_module, args=("torch",)).start()

    def _started(self) -> socket.socket:
        """The socket to a process that runs: a new one, if there is none."""
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        if self._control is not None:
            self._control.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, _PROCESS, "serve", *COMPILER_MODULES, *self._warm],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_trial_environment(self._modules, caches=self._caches),
                start_new_session=True,  # Ctrl-C is for us; the trials are ended, not interrupted.
            )
        return self._control

    def ask(self, request: Request) -> Answer:
        """Run one request to its end. Raise Stopped when it is all over, InternalError if no process can be had."""
        for _ in range(2):
            ours, theirs = socket.socketpair()
            with ours:
                with self._lock, theirs, suppress(OSError):
                    if self._over:
                        raise Stopped("interrupted")
                    socket.send_fds(self._started(), [b"."], [theirs.fileno()])
                with suppress(OSError):
                    ours.sendall(json.dumps(asdict(request)).encode() + b"\n")
                    answer = ours.makefile().readline()
                    if answer:
                        return Answer(**json.loads(answer))
        raise InternalError("no process for trials can be started; see `torchsan doctor`", slug="internal-error")


def run_anew(request: Request, *, caches: bool = True) -> Answer:
    """Run one request in an interpreter started for it."""
    try:
        done = subprocess.run(
            [sys.executable, _PROCESS, "once", json.dumps(asdict(request))],
            cwd=request.folder,
            env=_trial_environment("", caches=caches),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=request.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(status=-signal.SIGKILL, timeout=True)
    return Answer(status=done.returncode, timeout=False)
