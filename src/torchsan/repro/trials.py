"""Runs candidates, each in a fresh process with a time limit, several at once, and remembers what came of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchsan.errors import RecordingError, TorchsanError
from torchsan.recording import Reader
from torchsan.records import Exhibit, Finding, Given, decode, encode
from torchsan.report.findings import count
from torchsan.repro.candidates import elements
from torchsan.repro.oracle import find_same
from torchsan.repro.trial_server import Stopped, TrialServer

_TIME_IS_UP = "the time limit is reached"


class Trials:
    """Tells whether candidates show the finding. `write` puts the script of one into a folder and returns its name."""

    def __init__(
        self,
        finding: Finding,
        zygote: TrialServer,
        folder: Path,
        *,
        write: Callable[[Exhibit, Path], str],
        checks: tuple[str, ...],
        loads: tuple[str, ...],
        limit: float,
        deadline: float,
        jobs: int,
        progress: Callable[[str], None],
        known: dict[str, bool],
    ) -> None:
        self.count = 0
        self.known = known
        """What came of candidates so far, also in an earlier attempt that was interrupted."""
        self._finding = finding
        self._zygote = zygote
        self._pool = ThreadPoolExecutor(jobs)
        self._width = jobs
        self._folder = folder
        self._write = write
        self._checks = checks
        self._loads = loads
        self._limit = limit
        self._deadline = deadline
        self._progress = progress
        self._lock = threading.Lock()

    def close(self) -> None:
        """Wait for nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def first(self, candidates: Iterable[Exhibit]) -> Exhibit | None:
        """Return the first of the candidates, in their order, that shows the finding; None if none does.

        Raise Stopped when the time is up.
        """
        waiting = list({key_of(c): c for c in candidates}.values())
        while waiting:
            batch, waiting = waiting[: self._width], waiting[self._width :]
            if time.monotonic() > self._deadline:
                raise Stopped(_TIME_IS_UP)
            for candidate, good in zip(batch, self._pool.map(self.shows, batch), strict=True):
                if good:
                    return candidate
        return None

    def shows(self, candidate: Exhibit) -> bool:
        """Whether this candidate shows the finding. One that crashes, hangs or cannot be written does not."""
        key = key_of(candidate)
        if key in self.known:
            return self.known[key]
        with self._lock:
            self.count += 1
            number = self.count
        folder = self._folder / f"trial{number}"
        folder.mkdir()
        try:
            good, seconds = self._run(candidate, folder)
        finally:
            if not os.environ.get("TORCHSAN_DEBUG"):
                shutil.rmtree(folder, ignore_errors=True)
        self.known[key] = good
        what = f"{count(len(candidate.nodes), 'node')}, {count(elements(candidate), 'element')}"
        self._progress(f"trial {number}: {what}: {'shows it' if good else 'no'} ({seconds:.1f} s)")
        return good

    def _run(self, candidate: Exhibit, folder: Path) -> tuple[bool, float]:
        try:
            script = self._write(candidate, folder)
        except (TorchsanError, RuntimeError, TypeError, ValueError, KeyError, OSError):
            return False, 0.0
        request = {"work": "trial", "folder": str(folder), "words": [script], "check": list(self._checks)}
        answer = self._ask(request)
        try:
            findings = Reader(folder / "recording").findings()
        except RecordingError:
            return False, answer["seconds"]
        # A crash after the finding does not take it back; one without it is another failure.
        return not answer["timeout"] and find_same(self._finding, findings) is not None, answer["seconds"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        left = self._deadline - time.monotonic()
        limit = max(1.0, min(self._limit, left))
        answer = self._zygote.ask(request | {"loads": list(self._loads), "timeout": limit})
        if answer["timeout"] and left < self._limit:
            raise Stopped(_TIME_IS_UP)  # It might have shown the finding.
        return answer

    def evaluate(self, exhibit: Exhibit, folder: Path) -> dict[str, Given]:
        """Return inputs that hold the values of the exhibit's nodes, computed eagerly in a process of their own."""
        (folder / "exhibit.json").write_text(json.dumps(encode(exhibit)))
        self._ask({"work": "evaluate", "folder": str(folder)})
        try:
            values = json.loads((folder / "values.json").read_text())
        except (OSError, ValueError):
            return {}
        return {name: decode(Given, value) for name, value in values.items()}


def key_of(candidate: Exhibit) -> str:
    """The same for the same candidate, in another process too."""
    return hashlib.sha256(json.dumps(encode(candidate), sort_keys=True).encode()).hexdigest()[:24]
