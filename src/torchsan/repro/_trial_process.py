"""A process that has imported PyTorch once, and forks for each trial: a fresh process without the seconds of importing.

What `torchsan.repro.trial_server` starts, as a process of its own. It reads requests from stdin, one JSON object a
line, and answers each with a line once its trial is over: several at once, in whatever order they end. It runs nothing
in parallel itself: a fork of a process that has would hang.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import runpy
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_FILE = 4 << 30
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Spare:
    """A process that has imported PyTorch, but nothing of ours, and waits for the folder of a script to run alone."""

    process: int
    orders: int

    def run(self, folder: str) -> int:
        """Let it run the script. Return the process, which ends with it."""
        os.write(self.orders, os.fsencode(folder))
        return self.process


def main(spare: Spare) -> None:
    """Serve until stdin ends."""
    spares = [spare]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[0] = str(Path.cwd())
    _import_all()
    os.set_blocking(0, False)
    running: dict[int, _Running] = {}
    rest, over = b"", False
    while not over or running:
        select.select([0] if not over else [], [], [], 0.01 if running else None)
        with suppress(BlockingIOError):
            chunk = os.read(0, 1 << 16)
            over = over or not chunk
            rest += chunk
        *lines, rest = rest.split(b"\n")
        for line in lines:
            request = json.loads(line)
            alone = request["work"] == "alone" and spares
            child = spares.pop().run(request["folder"]) if alone else _start(request)
            running[child] = _Running(request["id"], time.monotonic(), request["timeout"])
        for answer in _ended(running):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def once() -> None:
    """Run the one request that is the argument, in this process."""
    sys.path[0] = str(Path.cwd())
    _in_child(json.loads(sys.argv[1]))


def _import_all() -> None:
    from torchsan.checks import REGISTRY

    watches = [f"torchsan.checks.{check}.watch" for check in REGISTRY]
    for name in ("torch", "torchsan.session", *watches, "torchsan.repro.evaluate"):
        importlib.import_module(name)
    from torchsan.torch_internals.inductor import warm_compiler

    warm_compiler()


@dataclass(frozen=True, slots=True)
class _Running:
    id: int
    started: float
    limit: float


def _start(request: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        _in_child(request)
    return child


def _ended(running: dict[int, _Running]) -> Iterator[dict[str, Any]]:
    """The answers for children that have ended, or had to be."""
    for child, request in list(running.items()):
        done, status = os.waitpid(child, os.WNOHANG)
        seconds = time.monotonic() - request.started
        timeout = not done and seconds > request.limit
        if timeout:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if done or timeout:
            del running[child]
            code = os.waitstatus_to_exitcode(status)
            yield {"id": request.id, "status": code, "seconds": seconds, "timeout": timeout}


def _in_child(request: dict[str, Any]) -> None:
    status = 70
    try:
        os.setsid()
        with suppress(OSError, AttributeError):  # Linux: die with the zygote, whoever ends it.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE, _MOST_FILE))
        folder = Path(request["folder"])
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        sys.path.insert(1, str(folder))
        for module in request["loads"]:
            importlib.import_module(module)
        work: Callable[[dict[str, Any], Path], int] = _WORK[request["work"]]
        status = work(request, folder)
    except BaseException:  # noqa: BLE001  # Whatever a trial does, it ends here.
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _trial(request: dict[str, Any], folder: Path) -> int:
    """Run the script in a session; its findings are in the recording then."""
    from torchsan.session import session

    with session(check=request["check"], out=folder / "recording"):
        return _script(request, folder)


def _script(request: dict[str, Any], folder: Path) -> int:
    """Run the script by itself."""
    sys.argv = request["words"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as e:
        return 0 if not e.code else 1
    except BaseException:  # noqa: BLE001  # An assertion is what it is for; anything else is a failure too.
        traceback.print_exc()
        return 1
    return 0


def _evaluate(request: dict[str, Any], folder: Path) -> int:
    from torchsan.repro.evaluate import evaluate

    evaluate(folder)
    return 0


def _alone(request: dict[str, Any], folder: Path) -> int:
    """Run the script in an interpreter started anew, when there is no spare any more."""
    os.execv(sys.executable, [sys.executable, *request["words"]])


_WORK = {"trial": _trial, "script": _script, "alone": _alone, "evaluate": _evaluate}
