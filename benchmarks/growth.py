"""How what torchsan does grows with the program: time, memory and recording, over three decades.

Four programs, each with one thing of which there is ten times as much from one run to the next: products of matrices in
one graph (kernels), calls of one kernel with `--calls all`, bytes of its tensor, and findings that are recorded and
reported. All checks that are on by default; time is what the run's own clocks charge to checks and to torchsan
(`--explain-cost`), memory the peak of the process. What is judged is the exponent of the last decade: 1 is in
proportion, less has a part that does not grow. Once, and two decades with `--quick`.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.row import Growth, Kind, Record, Row

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 1

_LEAST = {"kernels": 3, "calls": 10, "bytes": 40_000, "findings": 1}
_DECADES = 3
_GOAL = 1.1
_UNITS = {"time": "s", "memory": "MB", "recording": "kB"}


def measure(quick: bool) -> Iterator[Record]:
    """Run each program with ever more of its thing, two decades of it with `quick`."""
    with tempfile.TemporaryDirectory() as folder:
        for what, least in _LEAST.items():
            sizes = [least * 10**n for n in range(_DECADES + (not quick))]
            found = [_run(what, size, Path(folder)) for size in sizes]
            for of, unit in _UNITS.items():
                points = tuple(zip(map(float, sizes), (each[of] for each in found), strict=True))
                growth = Growth(of=of, unit=unit, by=what, points=points)
                yield growth
                yield Row(
                    what=f"exponent of {of} by {what}",
                    kind=Kind.LESS,
                    unit="",
                    ours=round(growth.exponent, 2),
                    goal=_GOAL,
                    note=growth.text,
                )


def _run(what: str, size: int, folder: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.growth",
        what,
        str(size),
        str(folder / f"{what}{size}"),
    ]
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environ, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(what: str, size: int, folder: Path) -> None:
    seconds = _findings(size, folder) if what == "findings" else _session(what, size, folder)
    recording = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"time": seconds, "memory": memory, "recording": recording / 1000}))


def _session(what: str, size: int, folder: Path) -> float:
    """Run a compiled program under all checks; return what they and torchsan took."""
    import torch

    import torchsan
    from torchsan.recording import Reader
    from torchsan.report.cost import as_json

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(size if what == "kernels" else 1):
            x = x @ x
        return x

    function: Any = torch.compile(program if what != "bytes" else torch.relu)
    shape = (size // 4,) if what == "bytes" else (8, 8)
    with torchsan.session(out=folder, calls="all" if what == "calls" else 2):
        for _ in range(size if what == "calls" else 2):
            function(torch.rand(shape) / 8)
    cost = as_json(Reader(folder))
    assert cost is not None
    return float(cost["torchsan"] + sum(cost["checks"].values()))


def _findings(size: int, folder: Path) -> float:
    """Record so many findings, and report them on a terminal, for programs and as a page."""
    from torchsan.recording import Program, Reader, Writer, finalize
    from torchsan.records import Check, Direction, Finding, GraphId, GraphRef, Kind, Severity, SourceLine, Stage
    from torchsan.report.html import HtmlExporter
    from torchsan.report.json_report import JsonExporter
    from torchsan.report.terminal import print_report

    start = time.perf_counter()
    writer = Writer.create(folder, command=["program.py"])
    for n in range(size):
        writer.finding(
            Finding(
                kind=Kind.WRONG_VALUES,
                severity=Severity.ERROR,
                check=Check.VALUES,
                message="the kernel computes other values than eager",
                stage=Stage.KERNEL,
                graph=GraphRef(id=GraphId(0), direction=Direction.FORWARD),
                kernel=f"cpp_fused_relu_{n}",
                buffer=f"buf{n}",
                nodes=("relu",),
                ops=("aten.relu.default",),
                source=(SourceLine(file="model.py", line=n + 1, code="x = self.act(x)"),),
                evidence={"max_abs": 0.5, "first_bad": [0, 3]},
            )
        )
    writer.close()
    finalize(folder, Program(exit=1))
    recording = Reader(folder)
    print_report(recording, io.StringIO())
    JsonExporter().render(recording)
    HtmlExporter().render(recording)
    return time.perf_counter() - start


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
