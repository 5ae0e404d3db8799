"""Counts how often one finding of torchsan passes from file to file; `tools/house.py` says what counts.

A profiler in each process does the counting: `house_steps/sitecustomize.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

Changes = Counter[tuple[str, str]]
"""How often control passed from one file to another, by the two files."""


def count_steps(src: Path, program: Path) -> tuple[Changes, set[str]]:
    """Run a wrong program under `torchsan run --check values`; return the changes of file, and the files passed."""
    changes: Changes = Counter()
    files: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        counts = Path(folder, "counts")
        counts.mkdir()
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "house_steps"), str(src)]),
            "HOUSE_PACKAGE": f"{src / 'torchsan'}{os.sep}",
            "HOUSE_FOLDER": str(counts),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "TORCHSAN_OPTIONS": "",
        }
        command = [sys.executable, "-m", "torchsan", "run", "--check", "values", str(program)]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
        if done.returncode != 1:
            raise RuntimeError(f"no finding in {program}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        for file in counts.glob("*.json"):
            counted = json.loads(file.read_text(encoding="utf-8"))
            changes.update({(a, b): count for a, b, count in counted["changes"]})
            files.update(counted["files"])
    return changes, files


def by_room(changes: Changes) -> Changes:
    """Return the changes of file that are changes of room."""
    rooms: Changes = Counter()
    for files, count in changes.items():
        one, other = (file.split("/")[0].removesuffix(".py") for file in files)
        if one != other:
            rooms[one, other] += count
    return rooms


def pairs(changes: Changes, most: int) -> tuple[str, ...]:
    """Return the most frequent changes, as text."""
    return tuple(f"{count} {a} → {b}" for (a, b), count in changes.most_common(most))
