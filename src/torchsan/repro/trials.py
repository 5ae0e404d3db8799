"""Trials: whether a candidate shows the finding; and, at the end, whether what was written does so by itself.

Importing it imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchsan.checks import REGISTRY, Reproduction
from torchsan.errors import RecordingError, UsageError
from torchsan.graphs.data import foreign_operators
from torchsan.recording import Reader, finalize
from torchsan.records import Exhibit, Finding, Given, decode, encode
from torchsan.repro.oracle import find_same
from torchsan.repro.script_assertions import shows_by_itself
from torchsan.repro.trial_server import Request, Stopped, TrialServer, run_anew

STATE = "state.json"
"""In the folder of a reproducer that may still become smaller: what came of the trials so far."""

_TIME_IS_UP = "the time limit is reached"
_Candidate = TypeVar("_Candidate")
_Item = TypeVar("_Item")


def require_free(out: Path) -> None:
    """Raise UsageError for a folder with something in it, unless an attempt there was interrupted."""
    if out.is_dir() and any(out.iterdir()) and not (out / STATE).is_file():
        raise UsageError(f"{out} is not empty; choose another folder with --out", slug="out-exists")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many trials may run at once; how long one of them may take, and all of them, in seconds."""

    jobs: int = 2
    trial: float = 120.0
    total: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A script that shows a problem, and what is left in it, in words.

    `verified`: it was run once more and shows it. `stopped` says why it may not be the smallest.
    """

    file: Path
    content: str
    trials: int
    verified: bool
    stopped: str | None


@dataclass(kw_only=True, eq=False)
class Trials(Generic[_Candidate]):
    """Tries candidates, several at once, and remembers what came of them.

    `shows` tries one in a folder made for it, within so many seconds: whether it shows the problem; it raises
    TimeoutError if the time is too short. `key` is the same for the same candidate, in another process too. `known` is
    what came of candidates so far, also in an earlier attempt that was interrupted. The time begins to count now.
    """

    shows: Callable[[_Candidate, Path, float], bool]
    folder: Path
    limits: Limits
    key: Callable[[_Candidate], str]
    describe: Callable[[_Candidate], str]
    progress: Callable[[str], None]
    known: dict[str, bool] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.limits.total
        self._pool = ThreadPoolExecutor(self.limits.jobs)
        self._lock = threading.Lock()

    def until_stopped(self, work: Callable[[], None]) -> str | None:
        """Do the work, which asks for trials; return why it stopped before its end, None if it did not.

        It stops when Stopped is raised or the user presses Ctrl-C. Trials that still run are not waited for.
        """
        try:
            work()
            return None
        except Stopped as e:
            return str(e)
        except KeyboardInterrupt:
            self.progress("interrupted; keeping the smallest so far")
            return "interrupted"
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def first(self, candidates: Iterable[_Candidate]) -> _Candidate | None:
        """Return the first of the candidates, in their order, that shows the problem; None if none does.

        Raise Stopped when the time is up.
        """
        waiting = list({self.key(c): c for c in candidates}.values())
        while waiting:
            batch, waiting = waiting[: self.limits.jobs], waiting[self.limits.jobs :]
            if time.monotonic() > self._deadline:
                raise Stopped(_TIME_IS_UP)
            for candidate, good in zip(batch, self._pool.map(self._try, batch), strict=True):
                if good:
                    return candidate
        return None

    def _try(self, candidate: _Candidate) -> bool:
        key = self.key(candidate)
        if key in self.known:
            return self.known[key]
        with self._lock:
            self.count += 1
            number = self.count
        folder = self.folder / f"trial{number}"
        folder.mkdir()
        start = time.monotonic()
        left = self._deadline - start
        try:
            good = self.shows(candidate, folder, max(1.0, min(self.limits.trial, left)))
        except TimeoutError:
            if left < self.limits.trial:
                raise Stopped(_TIME_IS_UP) from None  # It might have shown the problem.
            good = False
        finally:
            if not os.environ.get("TORCHSAN_DEBUG"):
                shutil.rmtree(folder, ignore_errors=True)
        self.known[key] = good
        answer = "shows it" if good else "does not show it"
        self.progress(f"trial {number}: {self.describe(candidate)}: {answer} ({time.monotonic() - start:.1f} s)")
        return good


def leave_out(left: Callable[[], list[_Item]], take: Callable[[list[list[_Item]]], bool]) -> None:
    """Leave out halves of the items, then quarters, at last single ones, for as long as `take` takes what is left then.

    It gets several rests to choose from and says whether it took one. `left` returns the items that there are now.
    """
    size = max(1, len(left()) // 2)
    while True:
        items = left()
        if not take([items[:i] + items[i + size :] for i in range(0, len(items), size)]):
            if size == 1:
                return
            size //= 2


def key_of(candidate: Exhibit) -> str:
    """The same for the same candidate, in another process too."""
    return hashlib.sha256(json.dumps(encode(candidate), sort_keys=True).encode()).hexdigest()[:24]


def elements(exhibit: Exhibit) -> int:
    """How many numbers a candidate is given."""
    return sum(math.prod(g.size) for g in exhibit.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs the script in a folder, in a process of its own, the ways that tell something about one finding.

    `checks` are those that it takes to make the finding, `loads` the modules to import first.
    """

    server: TrialServer
    finding: Finding
    checks: tuple[str, ...]
    loads: tuple[str, ...]

    def under_torchsan(self, folder: Path, limit: float, *, anew: bool = False) -> Finding | None:
        """Return the finding that torchsan makes of the script, if it is the same. Raise TimeoutError if it hangs.

        A crash after the finding does not take it back; one without it is another failure. With `anew` the script runs
        in an interpreter started for it, not in a fork.
        """
        request = Request(work="script", folder=str(folder), timeout=limit, check=self.checks, loads=self.loads)
        if (run_anew(request, caches=False) if anew else self.server.ask(request)).timeout:
            raise TimeoutError
        with suppress(RecordingError):
            finalize(folder / "recording", None)
            return find_same(self.finding, Reader(folder / "recording").findings())
        return None

    def fails_alone(self, folder: Path, limit: float) -> tuple[bool, str]:
        """Whether the script fails in a process that never imported torchsan, and what it prints then."""
        answer = self.server.ask(Request(work="alone", folder=str(folder), timeout=limit))
        output = folder / "output.txt"
        text = output.read_text(errors="replace") if output.exists() else ""
        return answer.status != 0 and not answer.timeout, text.replace(f"{folder}{os.sep}", "")

    def passes_eagerly(self, folder: Path, limit: float) -> bool:
        """Whether the script passes when it compiles nothing."""
        words = ("repro.py", "eager")
        answer = self.server.ask(Request(work="script", folder=str(folder), timeout=limit, words=words))
        return answer.status == 0 and not answer.timeout

    def evaluate(self, exhibit: Exhibit, folder: Path, limit: float) -> dict[str, Given]:
        """Return inputs that hold the values of the exhibit's nodes, computed eagerly. They go to `folder/tensors`.

        Raise UsageError if an operator of another library is still not registered when the modules are loaded: a name
        that a recording gives is looked up only where the dispatcher knows it.
        """
        (folder / "exhibit.json").write_text(json.dumps(encode(exhibit)))
        self.server.ask(Request(work="evaluate", folder=str(folder), timeout=limit, loads=self.loads))
        missing = set(foreign_operators(exhibit)) - set(_read_json(folder / "operators.json"))
        if missing:
            raise UsageError(
                f"{', '.join(self.loads)} cannot be imported, or does not register {', '.join(sorted(missing))}",
                slug="unknown-operator",
            )
        return {name: decode(Given, value) for name, value in _read_json(folder / "values.json").items()}


def _read_json(file: Path) -> Any:
    """What a trial wrote; nothing if it ended before."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of the verification; None where it does not apply.

    `same`: the finding that torchsan made in a fresh process, if it is the same. `alone`: the script fails without
    torchsan. `eager`: it passes when nothing is compiled. `output` is what it printed by itself.
    """

    same: Finding | None = None
    alone: bool | None = None
    eager: bool | None = None
    output: str = ""

    def __bool__(self) -> bool:
        """Whether the reproducer is verified."""
        return self.same is not None and self.alone is not False and self.eager is not False


def verify(folder: Path, runner: Runner, limit: float) -> Verdict:
    """Run the script of `folder` in copies of it. The recording of the run under torchsan becomes part of `folder`.

    It has to fail in a process that never imported torchsan, or in one that is started anew, if torchsan alone sees it.
    """
    by_itself = shows_by_itself(runner.finding)
    with tempfile.TemporaryDirectory(prefix="torchsan-verify-", ignore_cleanup_errors=True) as text:
        here = Path(text)
        for name in ("same", "alone", "eager"):
            shutil.copytree(folder, here / name, ignore=shutil.ignore_patterns(STATE, "recording"))
        with ThreadPoolExecutor(3) as pool:
            same = pool.submit(runner.under_torchsan, here / "same", limit, anew=not by_itself)
            alone = pool.submit(runner.fails_alone, here / "alone", limit) if by_itself else None
            compiled = REGISTRY[runner.finding.check].reproduction is Reproduction.COMPILED
            eager = pool.submit(runner.passes_eagerly, here / "eager", limit) if compiled else None
        recording = here / "same" / "recording"
        if recording.is_dir():
            shutil.rmtree(folder / "recording", ignore_errors=True)
            shutil.copytree(recording, folder / "recording")
        fails, output = alone.result() if alone is not None else (None, "")
        return Verdict(
            same=None if isinstance(same.exception(), TimeoutError) else same.result(),
            alone=fails,
            eager=None if eager is None else eager.result(),
            output=output,
        )
