"""What it takes to read a recording: `torchsan report`, and the web page.

Recordings that are made up: of 10 000 launches, each timed and with what it reads and writes, for the terminal; and of
2000 kernels with a finding, for the page, which Chromium opens until a kernel can be clicked at.
The best of several counts; a tenth of both with `--quick`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.pictures import chromium

from benchmarks.row import Kind, Record, Row, Skipped
from benchmarks.timing import in_turns
from torchsan.recording import Program, Writer, finalize
from torchsan.records import (
    CallTimes,
    Check,
    Direction,
    Finding,
    GraphId,
    GraphRecord,
    GraphRef,
    KernelKind,
    KernelRecord,
    LaunchTime,
    Severity,
    SourceLine,
    Stage,
)
from torchsan.records import (
    Kind as FindingKind,
)

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 2

_ROUNDS = 5


def measure(quick: bool) -> Iterator[Record]:
    """Measure the report on a terminal, and the page."""
    launches, kernels = (1000, 200) if quick else (10_000, 2000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _record(folder / "launches", graphs=10, kernels=launches // 10)
        works = {
            "plain": lambda: _python("-c", "pass"),
            "report": lambda: _python("-m", "torchsan", "report", str(folder / "launches")),
        }
        in_turns(works, 1)
        least = in_turns(works, 1 if quick else _ROUNDS)
        yield Row(
            what=f"`torchsan report` of {launches} launches, from start to end",
            kind=Kind.LESS,
            unit="s",
            ours=least["report"],
            peer="`python -c pass`",
            theirs=least["plain"],
            goal=1.0,
        )
        _record(folder / "kernels", graphs=4, kernels=kernels // 4)
        yield from _page(folder, kernels)


def _python(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    assert done.returncode in (0, 1, 4)


def _page(folder: Path, kernels: int) -> Iterator[Record]:
    page = folder / "report.html"
    _python("-m", "torchsan", "report", "--quiet", "--html", str(page), str(folder / "kernels"))
    size = page.stat().st_size / 1e6
    yield Row(what=f"page of {kernels} kernels, size", kind=Kind.LESS, unit="MB", ours=size, goal=8)
    what = f"page of {kernels} kernels, until a kernel can be clicked at"
    try:
        seconds = min(_interactive(page) for _ in range(3))
    except Exception as e:  # noqa: BLE001  # no browser, or no Playwright
        yield Skipped(what=what, why=f"there is no browser to open it in ({type(e).__name__})")
        return
    yield Row(what=what, kind=Kind.LESS, unit="s", ours=seconds, goal=1.5, note="in Chromium, from the address on")


def _interactive(page: Path) -> float:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root Chromium runs without its sandbox or not at all; what it shows here is our own.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        window = browser.new_page()
        start = time.perf_counter()
        window.goto(f"{page.as_uri()}#program")
        window.wait_for_selector("main[data-view=program]")
        window.get_by_text("cpp_fused_relu_0").first.click()
        seconds = time.perf_counter() - start
        browser.close()
    return seconds


def _record(folder: Path, *, graphs: int, kernels: int) -> None:
    """Make up the recording of a run in which each kernel was launched once."""
    writer = Writer.create(folder, command=["program.py"])
    for id_ in map(GraphId, range(graphs)):
        sites = tuple(_kernel(id_, nth, kernels) for nth in range(kernels))
        names = tuple(f"buf{nth}" for nth in range(kernels))
        text = "".join(f"cpp_fused_relu_{id_ * kernels + nth}(buf{nth}, buf{nth + 1})\n" for nth in range(kernels))
        artifacts = {"wrapper": writer.artifact(f"graph{id_}.wrapper.py", text)}
        record = GraphRecord(
            id=id_, direction=Direction.FORWARD, kernels=sites, buffers=names, inputs=("arg0_1",), artifacts=artifacts
        )
        writer.graph(record)
        writer.checked(id_, Direction.FORWARD, names)
        times = tuple(
            LaunchTime(nth=nth, launches=1, seconds=1e-4, bytes_read=4096, bytes_written=4096) for nth in range(kernels)
        )
        writer.event("times", {"times": CallTimes(graph=id_, direction=Direction.FORWARD, call=0, launches=times)})
    writer.finding(
        Finding(
            kind=FindingKind.WRONG_VALUES,
            severity=Severity.ERROR,
            check=Check.VALUES,
            message="the kernel computes other values than eager",
            stage=Stage.KERNEL,
            graph=GraphRef(id=GraphId(0), direction=Direction.FORWARD),
            kernel="cpp_fused_relu_0",
            buffer="buf0",
            source=_source(0),
            evidence={"max_abs": 0.5},
        )
    )
    writer.close()
    finalize(folder, Program(exit=0))


def _kernel(graph: int, nth: int, kernels: int) -> KernelRecord:
    return KernelRecord(
        name=f"cpp_fused_relu_{graph * kernels + nth}",
        nth=nth,
        kind=KernelKind.FUSED,
        reads=(f"buf{nth - 1}" if nth else "arg0_1",),
        writes=(f"buf{nth}",),
        nodes=(f"relu_{nth}",),
        ops=("aten.relu.default",),
        source=_source(nth),
    )


def _source(nth: int) -> tuple[SourceLine, ...]:
    return (SourceLine(file="model.py", line=nth % 97 + 1, code="x = self.act(x)", module=f"layers.{nth // 30}.mlp"),)
