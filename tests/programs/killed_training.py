"""Kills training runs of a compiled model at random moments: what they had printed of findings is in their recordings.

`python -m tests.programs.killed_training FOLDER SEED WHOLE STEPS` prints what went wrong, a line each, and how many it
killed. WHOLE runs are killed from the moment that their session opens, most of which is compiling. Of STEPS runs the
session and the compile are those of one process, which forks each of them before the first step, with a copy of the
recording so far as its own: a kill then costs a few steps.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tests.samples import finding
from torchsan.checks import REGISTRY
from torchsan.cli.main import main
from torchsan.errors import RecordingError
from torchsan.recording import Reader, Writer
from torchsan.recording.log import EventLog
from torchsan.session import session
from torchsan.torch_internals.inductor import COMPILER_MODULES
from torchsan.torch_internals.operators import start_autograd

STEPS = 6


class Training:
    """A small training loop under torchsan. Each finding, of which a check reports one a step, is printed once it is
    recorded.
    """

    def __init__(self, out: Path) -> None:
        torch.manual_seed(0)
        start_autograd()  # It trains on in forks of this process.
        self.session = session(check=("values", "memory"), watch="names", out=out, calls="all")
        self.session.open()
        assert isinstance(self.session._recorder, Writer)
        self.recorder = self.session._recorder
        self.recorder.on_finding = lambda found: print(found.id, flush=True)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.compiled = torch.compile(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, n: int) -> None:
        loss = self.compiled(torch.randn(4, 8)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.recorder.finding(finding(message=f"in step {n} " + "x" * 3000))
        self.optimizer.step()

    def go_on(self, folder: Path) -> None:
        """Record in this process, a fork of the one that began, to a copy of what was recorded so far."""
        shutil.copytree(self.recorder.path, folder)
        self.recorder.path = folder
        self.recorder._pid = os.getpid()
        self.recorder._log = EventLog(folder)


def whole(folder: Path) -> None:
    training = Training(folder / "run")
    for n in range(STEPS):
        training.step(n)
    training.session.close()


def start(folder: Path, work: Callable[[Path], None]) -> int:
    """Fork a run, whose output goes to a file; return its process."""
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(folder / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(os.open(folder / "errors", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        work(folder)
        print("trained", flush=True)
        status = 0
    except BaseException:  # noqa: BLE001  # the parent reads what it was
        traceback.print_exc()
    finally:
        os._exit(status)


def timed(folder: Path, work: Callable[[Path], None]) -> float:
    """How long a run takes that is not killed."""
    begun = time.monotonic()
    _, status = os.waitpid(start(folder, work), 0)
    assert status == 0, (folder / "errors").read_text()
    assert (folder / "said").read_text().endswith("trained\n")
    return time.monotonic() - begun


def check(folder: Path) -> str | None:
    """Return what is wrong with what a killed run left."""
    said = (folder / "said").read_text() if (folder / "said").exists() else ""
    printed = [line for line in said.splitlines(keepends=True) if line.startswith("F") and line.endswith("\n")]
    errors = (folder / "errors").read_text() if (folder / "errors").exists() else ""
    if "Traceback" in errors:
        return errors[-500:]
    try:
        found = [f"{f.id}\n" for f in Reader(folder / "run").findings()]
    except RecordingError as e:
        return f"{e}" if printed or e.slug != "no-recording" else None
    if found[: len(printed)] != printed:
        return f"printed {printed}, recorded {found}"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(["report", str(folder / "run")])
    expected = 1 if found else 4
    return None if status == expected else f"report: {status}, and not {expected}"


def kill(root: Path, dice: random.Random, count: int, work: Callable[[Path], None]) -> int:
    """Kill as many runs, each some time after its start; return how many left something wrong."""
    timed(root / "first", work)  # It fills caches.
    length = timed(root / "second", work)
    wrong = 0
    for n in range(count):
        folder = root / str(n)
        pid = start(folder, work)
        time.sleep(dice.uniform(0, length))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        problem = check(folder)
        if problem is None:
            shutil.rmtree(folder)
        else:
            wrong += 1
            print(f"{folder}: {problem}", flush=True)
    return wrong


def go(root: Path, seed: int, runs: int, steps: int) -> int:
    torch.set_num_threads(1)
    watches = [f"torchsan.checks.{name}.watch" for name in REGISTRY]
    for module in (*COMPILER_MODULES, *watches):  # A run would import them anew each time.
        importlib.import_module(module)
    dice = random.Random(seed)
    wrong = kill(root / "whole", dice, runs, whole) if runs else 0
    training = Training(root / "begun")
    training.recorder.on_finding = None
    training.step(0)
    training.recorder.on_finding = lambda found: print(found.id, flush=True)

    def a_few_steps(folder: Path) -> None:
        training.go_on(folder / "run")
        print("F1", flush=True)
        for n in range(1, 4 * STEPS):
            training.step(n)

    wrong += kill(root / "steps", dice, steps, a_few_steps) if steps else 0
    training.session.close()
    print(f"{runs + steps} kills, {wrong} problems", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(go(Path(sys.argv[1]), *map(int, sys.argv[2:5])))
