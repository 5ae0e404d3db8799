"""Runs programs, each in a process of its own with limits, and says what came of each.

Importing it imports no torch.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torchsan.errors import RecordingError
from torchsan.recording import Program as Ended
from torchsan.recording import Reader, finalize
from torchsan.records import Finding, Severity
from torchsan.report.verdict import verdict
from torchsan.repro.exhibits import Loads
from torchsan.repro.trial_server import Answer, Request, TrialServer, run_anew
from torchsan.sweep.programs import Program, address
from torchsan.sweep.results import BROKEN, Outcome, Result

_Future = TypeVar("_Future")
_FILE = "program.py"
_MOST_OUTPUT = 4000
_NO_MEMORY = re.compile(r"can't allocate memory|MemoryError|bad_alloc|out of memory", re.IGNORECASE)
_DRAWN = ("picture", "launch")
"""Evidence for reports that draw; a sweep keeps thousands of findings, and draws none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How every program of a sweep is run. `key` is what its results depend on beside the program.

    `paths` are folders with modules that the programs and `loads` may import; `seconds` and `memory`, in bytes, are the
    limits of one program.
    """

    key: str
    checks: tuple[str, ...]
    loads: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    seconds: float = 120.0
    memory: int = 8 << 30


@dataclass(frozen=True, slots=True)
class Judge:
    """Says what comes of a program, in forks of a server."""

    server: TrialServer
    setting: Setting

    def __call__(self, program: Program) -> Result:
        """Run a program under the checks; if it breaks, eagerly too, since then it may not be the compiler's fault."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="torchsan-sweep-", ignore_cleanup_errors=True) as text:
            result = self.judge_in(Path(text), program)
            if result.outcome in BROKEN and self._breaks_eagerly(Path(text, "eager"), program):
                died = result.outcome in (Outcome.CRASHED, Outcome.HUNG)
                result = replace(result, eagerly=True, outcome=result.outcome if died else Outcome.INVALID)
        return replace(result, seconds=round(time.monotonic() - start, 3))

    def judge_in(self, folder: Path, program: Program, *, anew: bool = False) -> Result:
        """Run a program in a folder, where its recording stays; with `anew` in an interpreter started for it."""
        request = self._request("script", folder, program)
        answer = run_anew(request) if anew else self.server.ask(request)
        recording = folder / "recording"
        finalize(recording, _ended(answer))
        base = Result(
            address=address(program, self.setting.key), program=program, outcome=Outcome.INCOMPLETE, seconds=0.0
        )
        return _read(base, recording, answer, _tail(folder / "output.txt"))

    def _breaks_eagerly(self, folder: Path, program: Program) -> bool:
        folder.mkdir()
        answer = self.server.ask(self._request("eager", folder, program))
        return answer.timeout or answer.status != 0

    def _request(self, work: str, folder: Path, program: Program) -> Request:
        (folder / _FILE).write_text(program.text, encoding="utf-8")
        return Request(
            work=work,
            folder=str(folder),
            timeout=self.setting.seconds,
            words=(_FILE, *program.args),
            check=self.setting.checks if work == "script" else (),
            loads=self.setting.loads,
            paths=(*filter(None, [program.beside]), *self.setting.paths),
            memory=self.setting.memory,
        )


def _ended(answer: Answer) -> Ended:
    if answer.status < 0:
        return Ended(signal=-answer.status)
    return Ended(exit=answer.status)


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _MOST_OUTPUT))
            return stream.read().decode(errors="replace").replace(f"{file.parent}/", "")
    except OSError:
        return ""


def _read(base: Result, recording: Path, answer: Answer, output: str) -> Result:
    """What a recording and the way the program ended say together."""
    signal = -answer.status if answer.status < 0 and not answer.timeout else None
    broken = _broken(answer, output)
    result = replace(base, signal=signal, output=output if broken else "", outcome=broken or Outcome.INCOMPLETE)
    try:
        reader = Reader(recording)
    except RecordingError as e:
        return replace(result, reasons=(str(e),))
    coverage = reader.coverage()
    result = replace(
        result,
        findings=tuple(_kept(finding) for finding in reader.findings()),
        covers=reached(reader),
        graphs=coverage.graphs,
        kernels=coverage.kernels,
        buffers=coverage.buffers,
        buffers_checked=coverage.buffers_checked,
        reasons=verdict(reader).reasons,
    )
    if any(f.severity is Severity.ERROR for f in result.findings):
        return replace(result, outcome=Outcome.FINDINGS)
    if broken is None and not result.reasons:
        return replace(result, outcome=Outcome.CLEAN)
    return result


def _broken(answer: Answer, output: str) -> Outcome | None:
    if answer.timeout:
        return Outcome.HUNG
    if answer.status == 0:
        return None
    if _NO_MEMORY.search(output):
        return Outcome.OUT_OF_MEMORY
    return Outcome.CRASHED if answer.status < 0 else Outcome.FAILED


def _kept(finding: Finding) -> Finding:
    return replace(finding, evidence={k: v for k, v in finding.evidence.items() if k not in _DRAWN})


def reached(reader: Reader) -> tuple[str, ...]:
    """What the compile of a program reached: operators lowered, kinds and fusions of kernels."""
    found: set[str] = set()
    for graph in reader.graphs():
        for kernel in graph.kernels:
            names = sorted({op.removeprefix("aten.").partition(".")[0] for op in kernel.ops})
            found |= {f"{graph.direction} {kernel.kind} {name}" for name in names}
            found |= {f"fused {a} {b}" for i, a in enumerate(names) for b in names[i + 1 :]}
    return tuple(sorted(found))


def run_locally(
    programs: Iterator[Program], setting: Setting, jobs: int, modules: str = "", loads: Loads | None = None
) -> Iterator[Result]:
    """Yield what comes of programs, in the order they end, from `jobs` processes of this machine at once.

    Programs are taken one by one as there is room, so that what comes next may depend on what came before. What still
    runs when the caller stops is ended.
    """
    with tempfile.TemporaryDirectory(prefix="torchsan-loads-", ignore_cleanup_errors=True) as folder:
        (loads or Loads()).copy_to(Path(folder))
        there = replace(setting, paths=(*setting.paths, folder))
        pool = ThreadPoolExecutor(jobs)
        with TrialServer(modules, setting.warm) as server:
            try:
                yield from in_flight(programs, lambda p: pool.submit(Judge(server, there), p), _first_done, jobs)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _first_done(waiting: set[Future[Result]]) -> tuple[list[Result], set[Future[Result]]]:
    done, rest = wait(waiting, return_when=FIRST_COMPLETED)
    return [future.result() for future in done], set(rest)


def in_flight(
    programs: Iterator[Program],
    submit: Callable[[Program], _Future],
    some: Callable[[set[_Future]], tuple[list[Result], set[_Future]]],
    width: int,
) -> Iterator[Result]:
    """Keep `width` programs running; `some` waits until at least one of them is done."""
    waiting: set[_Future] = set()
    with suppress(StopIteration):
        while True:
            while len(waiting) < width:
                waiting.add(submit(next(programs)))
            done, waiting = some(waiting)
            yield from done
    while waiting:
        done, waiting = some(waiting)
        yield from done
