"""What `--watch` costs: a training step of a transformer of 25 million parameters, compiled, with and without it.

Next to PyTorch's own printer of intermediate values (`aot_inductor.debug_intermediate_value_printer`), with how many of
the kernels each of the two shows.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch._inductor.codecache import PyCodeCache

from benchmarks.models import LanguageModel
from torchsan.instruments.frames import Entry
from torchsan.options import Options, Watch
from torchsan.recording import Reader
from torchsan.report.values import watched_values
from torchsan.session import Session

__all__ = ["main"]

_ROUNDS = 4
_GOALS = {Watch.NAMES: 1.05, Watch.PRINT: 1.5, Watch.SAVE: 3.0}

Step = Callable[[], None]


def _training() -> Step:
    """Compile the model anew and return its training step, warmed up."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = LanguageModel()
    tokens = torch.randint(0, 8192, (4, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        compiled(tokens).backward()
        optimizer.step()

    step()
    step()
    return step


def _best(*steps: Step) -> list[float]:
    """The seconds of the fastest of a few rounds of each, in turns, since others share the machine."""
    least = [float("inf")] * len(steps)
    for _ in range(_ROUNDS):
        for i, step in enumerate(steps):
            start = time.perf_counter()
            step()
            least[i] = min(least[i], time.perf_counter() - start)
    return least


@contextlib.contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Send standard output and error of the process to a file, whoever writes there."""
    saved = [os.dup(1), os.dup(2)]
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        for number, original in zip((1, 2), saved, strict=True):
            os.dup2(original, number)
            os.close(original)
        os.close(target)


def _watched(level: Watch, folder: Path) -> tuple[float, float, int, int]:
    """Seconds of a plain step and of one under `--watch level`, kernels shown, kernels there are."""
    # No checks: they look at the first calls only, and this is about watching.
    session = Session(Options(check=(), watch=level, out=str(folder / level)))
    with _output_to(folder / f"{level}.txt"), session:
        step = _training()
        entries = [m.call for m in PyCodeCache.modules if isinstance(getattr(m, "call", None), Entry)]
        observers = entries[0]._observers

        def plain() -> None:
            # The same program, entered as it is without a session.
            for entry in entries:
                entry._observers = ()
            step()
            for entry in entries:
                entry._observers = observers

        bare, seconds = _best(plain, step)
    recording = Reader(folder / level)
    launches = {(w.graph, w.direction, w.site) for w in watched_values(recording) if w.site is not None}
    return bare, seconds, len(launches), recording.coverage().kernels


def _ancestor(level: str, folder: Path) -> tuple[float, int]:
    """Seconds of a step with PyTorch's own printer at `level`, and how many launches of one step it shows."""
    from torch._inductor import config

    output = folder / f"ancestor{level}.txt"
    # Without caches: what it generates names the folder to save to, and is no good in another.
    settings = {"aot_inductor.debug_intermediate_value_printer": level, "force_disable_caches": True}
    here = Path.cwd()
    os.chdir(folder)  # It saves to the current folder.
    try:
        with config.patch(settings), _output_to(output):
            step = _training()
            output.write_text("")
            (seconds,) = _best(step)
    finally:
        os.chdir(here)
    text = output.read_text(errors="replace")
    printed = set(re.findall(r"(?:before|after)_launch - ([\w.]+)", text))
    saved = {
        re.sub(r".*(?:before|after)_launch_([\w.]+?)_(?:buf|arg|primals).*", r"\1", p.name)
        for p in folder.rglob("*.pt")
    }
    return seconds, len(printed) if level == "2" else len(saved)


def main() -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("a training step of 24.9 million parameters, 4 × 128 tokens")
        print(f"  {'':<34}{'plain':>9}{'watched':>10}{'ratio':>8}  kernels shown", flush=True)
        for level, goal in _GOALS.items():
            plain, seconds, shown, kernels = _watched(level, folder)
            ratio = seconds / plain
            verdict = f"goal ≤ {goal:g}: {'met' if ratio <= goal else 'missed'}"
            times = f"{plain:>7.2f} s{seconds:>8.2f} s{ratio:>8.2f}"
            print(f"  --watch {level:<26}{times}  {shown} of {kernels}   {verdict}", flush=True)
        (plain,) = _best(_training())
        for number, what in (("2", "prints"), ("1", "saves")):
            seconds, shown = _ancestor(number, folder)
            text = f"PyTorch's level {number} ({what})"
            print(f"  {text:<34}{plain:>7.2f} s{seconds:>8.2f} s{seconds / plain:>8.2f}  {shown} names of kernels")


if __name__ == "__main__":
    main()
