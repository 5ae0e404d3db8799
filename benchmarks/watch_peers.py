"""What PyTorch has to look at the values of a compiled step: `DebugMode` and its printer of intermediate values."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._inductor import config
from torch.utils._debug_mode import DebugMode

from benchmarks.models import training
from benchmarks.timing import in_turns

__all__ = ["ROUNDS", "Debugged", "debug_mode", "output_to", "printed"]

ROUNDS = 4


@contextlib.contextmanager
def output_to(file: Path) -> Iterator[None]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Debugged:
    """Seconds of a plain step, of one under DebugMode, of one with hashes; and what DebugMode recorded."""

    plain: float
    recorded: float
    hashed: float
    logs: list[Any]


def debug_mode(layers: int) -> Debugged:
    """Measure a step without DebugMode and with it, in turns."""
    step = training(layers)

    def record() -> DebugMode:
        mode = DebugMode()
        with mode:
            step()
        return mode

    def hashed() -> None:
        with DebugMode.log_tensor_hashes():
            record()

    least = in_turns({"plain": step, "recorded": record, "hashed": hashed}, ROUNDS)
    return Debugged(**least, logs=record().logs)


def printed(level: int, layers: int, folder: Path) -> tuple[float, int]:
    """Return the seconds of a step with PyTorch's printer, and how many names of kernels it shows.

    Level 2 prints, level 1 saves.
    """
    output = folder / f"printer{level}.txt"
    # Without caches: what it generates names the folder to save to, and is no good in another.
    settings = {"aot_inductor.debug_intermediate_value_printer": str(level), "force_disable_caches": True}
    here = Path.cwd()
    os.chdir(folder)  # It saves to the current folder.
    try:
        with config.patch(settings), output_to(output):
            step = training(layers)
            output.write_text("")
            seconds = in_turns({"printed": step}, ROUNDS)["printed"]
    finally:
        os.chdir(here)
    return seconds, len(_in_text(output) if level == 2 else _in_files(folder))


def _in_text(output: Path) -> set[str]:
    return set(re.findall(r"(?:before|after)_launch - ([\w.]+)", output.read_text(errors="replace")))


def _in_files(folder: Path) -> set[str]:
    launched = re.compile(r".*(?:before|after)_launch_([\w.]+?)_(?:buf|arg|primals).*")
    return {launched.sub(r"\1", file.name) for file in folder.rglob("*.pt")}
