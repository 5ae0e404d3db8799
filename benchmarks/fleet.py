"""One report over 512 recordings of 10 000 events each (32 with `--quick`): time, and memory of all its processes.

The time is that of its processors divided by two cores, which is what it takes where nothing else runs.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types

from benchmarks.row import Kind, Record, Row
from torchsan.recording import Program, Writer, finalize
from torchsan.records import (
    CallCount,
    Check,
    Direction,
    Finding,
    GraphId,
    GraphRecord,
    KernelKind,
    KernelRecord,
    Severity,
    StepRecord,
)
from torchsan.records import Kind as FindingKind

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 1
_EVENTS = 10_000
_HOSTS = 64
_WRONG = 7
"""The host whose runs have one finding that no other has."""


def measure(quick: bool) -> Iterator[Record]:
    """Write the recordings, and have one report made of them."""
    runs = 32 if quick else 512
    with tempfile.TemporaryDirectory() as folder:
        _record(Path(folder), runs)
        seconds, megabytes, said = _report(Path(folder))
    assert f"node{_WRONG}" in said, said[-2000:]
    what = f"a report over {runs} recordings of {_EVENTS} events"
    yield Row(what=f"{what}, on two cores", kind=Kind.LESS, unit="s", ours=seconds, goal=60.0)
    yield Row(what=f"{what}, memory of all processes", kind=Kind.LESS, unit="MB", ours=megabytes, goal=1000.0)


def _record(folder: Path, runs: int) -> None:
    """Two recordings, one with an error; and copies of them for every run, by the names of their hosts."""
    models = {wrong: folder / f"model-{wrong}" for wrong in (False, True)}
    for wrong, model in models.items():
        writer = Writer.create(model, command=["train.py"])
        ref = GraphId(0)
        kernels = tuple(_kernel(nth) for nth in range(40))
        buffers = tuple(f"buf{n}" for n in range(40))
        writer.graph(GraphRecord(id=ref, direction=Direction.FORWARD, kernels=kernels, buffers=buffers, artifacts={}))
        for n in range(_EVENTS - 40 - 2 - wrong):
            if n % 2:
                digests = tuple(f"{n * 7919 + k:016x}" for k in range(8))
                step = StepRecord(optimizer=0, step=n, before=(), gradients=digests, parameters=digests)
                writer.event("replica-step", {"step": step})
            else:
                writer.event("calls", CallCount(graph=ref, direction=Direction.FORWARD, seen=n + 1, checked=n // 40))
        for n in range(40):
            writer.checked(ref, Direction.FORWARD, [f"buf{n}"], Check.VALUES)
        if wrong:
            writer.finding(
                Finding(
                    kind=FindingKind.NONDETERMINISTIC,
                    severity=Severity.ERROR,
                    check=Check.VALUES,
                    kernel="cpp_fused_3",
                    message="cpp_fused_3 gives another result when it is launched again with equal inputs",
                )
            )
        writer.close()
        finalize(model, Program(exit=0))
    for n in range(runs):
        host = n % _HOSTS
        place = folder / "runs" / f"day-{n % 7}" / f"run-{n:04}"
        shutil.copytree(models[host == _WRONG], place)
        manifest = json.loads((place / "manifest.json").read_text())
        (place / "manifest.json").write_text(json.dumps(manifest | {"host": f"node{host}"}))
    for model in models.values():
        shutil.rmtree(model)


def _kernel(nth: int) -> KernelRecord:
    return KernelRecord(
        name=f"cpp_fused_{nth}",
        nth=nth,
        kind=KernelKind.FUSED,
        reads=(f"buf{nth - 1}",),
        writes=(f"buf{nth}",),
        nodes=(),
        ops=("aten.relu.default",),
        source=(),
    )


def _report(folder: Path) -> tuple[float, float, str]:
    """Seconds on two cores, the most memory of the command and its processes together in MB, and what it printed."""
    before = _processor_time()
    command = [sys.executable, "-m", "torchsan", "report", str(folder / "runs")]
    with (folder / "said").open("w+") as said:
        process = psutil.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, _together(process))
            time.sleep(0.1)
        said.seek(0)
        return (_processor_time() - before) / 2, peak, said.read()


def _processor_time() -> float:
    """What the processes that this one started, and that are over, have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _together(process: psutil.Popen) -> float:
    """What a process and those that it started hold, shared pages divided by those who share them, in MB."""
    total = 0.0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().pss / 1e6
    except psutil.Error:
        return 0.0
    return total
