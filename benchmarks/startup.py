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
        run = [sys.executable, "-m", "torchsan", "run", "--quiet"]
        rows = (
            ("`import torchsan` after `import torch`", ["-c", "import torch"], ["-c", "import torch, torchsan"], 0.3),
            ("`torchsan run` of a program that imports torch", [str(script)], None, 0.5),
        )
        print(f"{'':<48}{'python':>9}{'torchsan':>10}{'added':>9}{'goal':>9}")
        for name, plain, ours, goal in rows:
            other = [sys.executable, *ours] if ours is not None else [*run, str(script)]
            before, after = _best_of_both([sys.executable, *plain], other, folder, environ)
            added = after - before
            verdict = "ok" if added <= goal else "MISSED"
            print(f"{name:<48}{before:>7.2f} s{after:>8.2f} s{added:>7.2f} s{goal:>7.2f} s  {verdict}")


def _search_path() -> list[str]:
    import torchsan

    return [str(Path(torchsan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]


def _best_of_both(one: list[str], other: list[str], cwd: str, env: dict[str, str]) -> tuple[float, float]:
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
