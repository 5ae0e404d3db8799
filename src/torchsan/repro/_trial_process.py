"""The process that `trial_server` starts: it imports PyTorch once and forks a fresh process for each trial.

    python _trial_process.py serve MODULE…    serve requests; import the modules before anything else
    python _trial_process.py once REQUEST     run one request in this very process

Its stdin is a socket, and through it comes a connection for each request: a line of JSON each way, the answer once the
trial is over. It runs nothing in parallel itself: a fork of a process that has would hang.

It is run as a file and imports nothing of torchsan at first. So it can fork the *spare*: a process that has PyTorch
ready and never imported torchsan, for the script that has to fail without it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # This file's folder, which Python put there; before any import could look into it.

import ctypes
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_MOST_FILE = 4 << 30
_MODULES = os.environ.get("TORCHSAN_TRIAL_MODULES")
_PR_SET_PDEATHSIG = 1
_FAILED = 70


def _main() -> None:
    match sys.argv[1:]:
        case ["serve", *modules]:
            for name in modules:
                importlib.import_module(name)
            spare = _fork_spare()
            _import_torchsan()
            _serve([spare])
        case ["once", request]:
            _run(json.loads(request))


def _import_torchsan() -> None:
    """What trials need of torchsan, so that no trial has to import it."""
    from torchsan.checks import REGISTRY

    watches = [f"torchsan.checks.{check}.watch" for check in REGISTRY]
    for name in ("torchsan.session", *watches, "torchsan.repro.values"):
        importlib.import_module(name)
    from torchsan.torch_internals.inductor import warm_compiler

    warm_compiler()


@dataclass(frozen=True, slots=True)
class _Running:
    connection: socket.socket
    deadline: float


def _serve(spares: list[_Spare]) -> None:
    """Serve until stdin ends: nobody waits for answers any more then, so what still runs is ended."""
    control = socket.socket(fileno=0)
    running: dict[int, _Running] = {}
    while True:
        ready, _, _ = select.select([control], [], [], 0.01 if running else None)
        if ready:
            _, received, _, _ = socket.recv_fds(control, 1, 1)
            if not received:
                break
            connection = socket.socket(fileno=received[0])
            request = json.loads(connection.makefile().readline())
            child = _start(request, spares, [connection, *(r.connection for r in running.values())])
            running[child] = _Running(connection, time.monotonic() + request["timeout"])
        _answer_ended(running)
    for child in running:
        _kill(child)


def _start(request: dict[str, Any], spares: list[_Spare], connections: list[socket.socket]) -> int:
    """Start the trial; return its process."""
    if request["work"] == "alone" and spares:
        spare = spares.pop()
        with suppress(BrokenPipeError):  # It has died.
            os.write(spare.orders, os.fsencode(request["folder"]))
            return spare.process
    child = os.fork()
    if child == 0:
        for connection in connections:
            connection.close()
        _run(request)
    return child


def _answer_ended(running: dict[int, _Running]) -> None:
    """Answer for the trials that have ended, or have to because their time is up."""
    for child, trial in list(running.items()):
        done, status = os.waitpid(child, os.WNOHANG)
        timeout = not done and time.monotonic() > trial.deadline
        if timeout:
            _kill(child)
            _, status = os.waitpid(child, 0)
        if done or timeout:
            del running[child]
            answer = {"status": os.waitstatus_to_exitcode(status), "timeout": timeout}
            with suppress(BrokenPipeError), trial.connection:
                trial.connection.sendall(json.dumps(answer).encode() + b"\n")


def _kill(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
        os.killpg(child, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Spare:
    process: int
    orders: int
    """Where the folder goes whose script it is to run. It ends with that."""


def _fork_spare() -> _Spare:
    order, orders = os.pipe()
    process = os.fork()
    if process:
        os.close(order)
        return _Spare(process, orders)
    os.close(orders)
    _detach()
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    folder = os.read(order, 1 << 16)
    if not folder:  # The server has ended.
        os._exit(0)
    _enter(Path(os.fsdecode(folder)))
    sys.exit(_run_script(["repro.py"]))


def _detach() -> None:
    os.setsid()
    with suppress(OSError, AttributeError):  # Linux: die with the server, whoever ends it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _enter(folder: Path) -> None:
    """Make this a process that runs in the folder, writes to `output.txt` in it and cannot fill the disk."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE, _MOST_FILE))
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if _MODULES:  # Last, so that nothing in it stands in the place of another module.
        sys.path.append(_MODULES)


def _run(request: dict[str, Any]) -> NoReturn:
    """Run one request and end this process with its status."""
    status = _FAILED
    try:
        _detach()
        folder = Path(request["folder"])
        _enter(folder)
        sys.path.extend(request["paths"])
        if request["memory"]:
            resource.setrlimit(resource.RLIMIT_DATA, (request["memory"], request["memory"]))
        for module in request["loads"]:
            importlib.import_module(module)
        status = _WORK[request["work"]](request, folder)
    except BaseException:  # noqa: BLE001  # Whatever a trial does, it ends here.
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run_script(words: list[str]) -> int:
    """Run the script with these words as its arguments. Return its status; a traceback begins with its first frame."""
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as e:
        return 0 if not e.code else 1
    except BaseException as e:  # noqa: BLE001  # An assertion is what it is for; anything else is a failure too.
        frame = e.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != words[0]:
            frame = frame.tb_next
        traceback.print_exception(e.with_traceback(frame))
        return 1
    return 0


def _script(request: dict[str, Any], folder: Path) -> int:
    """Run the script; if checks are asked for, in a session, whose findings are in the recording then."""
    if not request["check"]:
        return _run_script(request["words"])
    from torchsan.session import session

    with session(check=request["check"], out=folder / "recording"):
        return _run_script(request["words"])


def _eager(request: dict[str, Any], folder: Path) -> int:
    """Run the script with everything that it compiles run as it is written."""
    import torch

    torch.compiler.set_stance("force_eager")
    return _run_script(request["words"])


def _alone(request: dict[str, Any], folder: Path) -> int:
    """Run the script in an interpreter started anew, when there is no spare any more."""
    if _MODULES:
        os.environ["PYTHONPATH"] += os.pathsep + _MODULES
    os.execv(sys.executable, [sys.executable, *request["words"]])


def _evaluate(request: dict[str, Any], folder: Path) -> int:
    """Compute the values of an exhibit's nodes."""
    from torchsan.repro.values import evaluate

    evaluate(folder)
    return 0


_WORK: dict[str, Callable[[dict[str, Any], Path], int]] = {
    "script": _script,
    "eager": _eager,
    "alone": _alone,
    "evaluate": _evaluate,
}

if __name__ == "__main__":
    _main()
