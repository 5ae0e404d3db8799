"""What torchsan adds to the start of a program.

Both sides run in turns, in processes of their own, and the best of each counts: everything that disturbs adds time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row import Kind, Record, Row
from benchmarks.timing import in_turns

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3

_ROUNDS = 7


def measure(quick: bool) -> Iterator[Record]:
    """Measure what importing and what running adds, in seconds; then what the command line takes by itself."""
    rounds = 1 if quick else _ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, _search_path()))}
        # A cache of bytecode, as an installed package has one; not every environment may write beside the sources.
        environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "pycache"))
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        yield _row("`import torchsan` after `import torch`", *_imports(folder, environ, rounds), goal=0.3)
        yield from _small(folder, environ, 1 if quick else 3 * rounds)
        script = Path(folder, "program.py")
        script.write_text("import torch\n")
        what = "`torchsan run` of a program that imports torch"
        yield _row(what, *_runs(str(script), folder, environ, rounds), goal=0.5)


def _row(what: str, before: float, after: float, goal: float) -> Row:
    note = f"{before:.2f} s without, {after:.2f} s with"
    return Row(what=f"{what} adds", kind=Kind.LESS, unit="s", ours=after - before, goal=goal, note=note)


def _small(cwd: str, env: dict[str, str], rounds: int) -> Iterator[Row]:
    """What torchsan does before there is a torch."""

    def python(*words: str) -> None:
        subprocess.run([sys.executable, *words], cwd=cwd, env=env, stdout=subprocess.DEVNULL, check=True)

    works = {
        "plain": lambda: python("-c", "pass"),
        "import": lambda: python("-c", "import torchsan"),
        "help": lambda: python("-m", "torchsan", "--help"),
    }
    in_turns(works, 1)  # As above.
    least = {name: seconds * 1e3 for name, seconds in in_turns(works, rounds).items()}
    alone = f"`python -c pass` takes {least['plain']:.0f} ms"
    added = least["import"] - least["plain"]
    yield Row(what="`import torchsan` adds", kind=Kind.LESS, unit="ms", ours=added, goal=30, note=alone)
    what = "`torchsan --help`, from start to end"
    yield Row(what=what, kind=Kind.LESS, unit="ms", ours=least["help"], goal=120, note=alone)


def _search_path() -> list[str]:
    import torchsan

    return [str(Path(torchsan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]


_IMPORTS = """
import time
start = time.perf_counter()
import torch
torch_there = time.perf_counter()
import torchsan
print(torch_there - start, time.perf_counter() - torch_there)
"""


def _imports(cwd: str, env: dict[str, str], rounds: int) -> tuple[float, float]:
    """One process imports both: its noise is larger than what is measured."""
    found = []
    for _ in range(rounds + 1):
        done = subprocess.run([sys.executable, "-c", _IMPORTS], cwd=cwd, env=env, capture_output=True, check=True)
        found.append([float(word) for word in done.stdout.split()])
    torch, torchsan = (min(column) for column in zip(*found[1:], strict=True))
    return torch, torch + torchsan


def _runs(script: str, cwd: str, env: dict[str, str], rounds: int) -> tuple[float, float]:
    def run(*words: str) -> None:
        command = [sys.executable, *words, script]
        subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    works = {"plain": run, "ours": lambda: run("-m", "torchsan", "run", "--quiet")}
    in_turns(works, 1)  # The first round fills the caches.
    least = in_turns(works, rounds)
    return least["plain"], least["ours"]
