"""What torchsan adds to the compile of a large graph.

A transformer of 48 layers (4 with `--quick`), forward and backward, more than 1000 kernels, compiled under all checks
with no launch checked: what is left is reading the generated code, planning and putting probes in. The stages check
keeps the graphs between the stages, and looks at the first call whatever `--calls` says: both are in the second row.
The seconds are those of the run's own clocks (`--explain-cost`): both sides are of the same compile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row import Kind, Record, Row

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 1

_REASON = "Per kernel what is added stays the same, and Inductor compiles a kernel that many layers share once."


def measure(quick: bool) -> Iterator[Record]:
    """Compile it in a process and with caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.large_graph", "4" if quick else "48", folder]
        environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache"))}
        root = Path(__file__).parents[1]
        done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=True)
    cost = json.loads(done.stdout.splitlines()[-1])
    stages = cost["checks"].pop("stages", 0.0)
    added = cost["torchsan"] + sum(cost["checks"].values())
    for what, seconds, goal in (
        ("reading, planning and probes", added, 1.05),
        ("and the stages of its first call", added + stages, None),
    ):
        yield Row(
            what=f"compile of {cost['kernels']} kernels, {what}",
            kind=Kind.COST,
            unit="s",
            ours=cost["compile"] + seconds,
            peer="compile alone",
            theirs=cost["compile"],
            goal=goal,
            reason=_REASON,
        )


def _compile(layers: int, folder: Path) -> None:
    import torch

    import torchsan
    from benchmarks.models import LanguageModel
    from torchsan.recording import Reader
    from torchsan.report.cost import as_json

    model, tokens = LanguageModel(width=40, vocabulary=64, layers=layers), torch.randint(0, 64, (2, 16))
    with torchsan.session(out=folder / "run", calls=f"steps:{10**9}"):
        torch.compile(model)(tokens).backward()
    recording = Reader(folder / "run")
    print(json.dumps((as_json(recording) or {}) | {"kernels": recording.coverage().kernels}))


if __name__ == "__main__":
    _compile(int(sys.argv[1]), Path(sys.argv[2]))
