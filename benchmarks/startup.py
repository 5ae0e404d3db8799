"""What torchsan adds to the start of a program: `python -m benchmarks.startup`.

Both sides run in turns, in processes of their own, and the best of each counts: everything that disturbs adds time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 7


def main() -> None:
    """Measure, and print what was added beside its goal."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, _search_path()))}
        # A cache of bytecode, as an installed package has one; not every environment may write beside the sources.
        environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "pycache"))
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        script = Path(folder, "program.py")
        script.write_text("import torch\n")
        if os.getloadavg()[0] > (os.cpu_count() or 1):
            print("others keep this machine busy: wall-clock times below are too long, on both sides")
        print(f"{'':<48}{'python':>9}{'torchsan':>10}{'added':>9}{'goal':>9}")
        _row("`import torchsan` after `import torch`", *_imports(folder, environ), goal=0.3)
        plain = [sys.executable, str(script)]
        ours = [sys.executable, "-m", "torchsan", "run", "--quiet", str(script)]
        _row("`torchsan run` of a program that imports torch", *_in_turns(plain, ours, folder, environ), goal=0.5)


def _row(name: str, before: float, after: float, goal: float) -> None:
    added = after - before
    verdict = "ok" if added <= goal else "MISSED"
    print(f"{name:<48}{before:>7.2f} s{after:>8.2f} s{added:>7.2f} s{goal:>7.2f} s  {verdict}")


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


def _imports(cwd: str, env: dict[str, str]) -> tuple[float, float]:
    """One process imports both: its noise is larger than what is measured."""
    rounds = []
    for _ in range(ROUNDS + 1):
        done = subprocess.run([sys.executable, "-c", _IMPORTS], cwd=cwd, env=env, capture_output=True, check=True)
        rounds.append([float(word) for word in done.stdout.split()])
    torch, torchsan = (min(column) for column in zip(*rounds[1:], strict=True))
    return torch, torch + torchsan


def _in_turns(one: list[str], other: list[str], cwd: str, env: dict[str, str]) -> tuple[float, float]:
    best = [float("inf"), float("inf")]
    for n in range(ROUNDS + 1):
        for side, command in enumerate((one, other)):
            started = time.perf_counter()
            subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if n > 0:  # The first round fills the caches.
                best[side] = min(best[side], time.perf_counter() - started)
    return best[0], best[1]


if __name__ == "__main__":
    main()
