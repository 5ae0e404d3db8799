"""Runs candidates, each in a fresh process with a time limit, several at once, and remembers what came of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torchsan.errors import InternalError, RecordingError, TorchsanError
from torchsan.recording import Reader
from torchsan.records import Exhibit, Finding, Given, decode, encode
from torchsan.repro.oracle import find_same

__all__ = ["Stopped", "Trials", "Zygote", "environment", "key_of", "zygote"]


class Stopped(Exception):
    """The time is up, or the user pressed Ctrl-C: the best so far is what there is."""


def environment() -> dict[str, str]:
    """The environment of processes that import torchsan and the user's modules from where this process would."""
    package = str(Path(__file__).parents[2])
    paths = [package, str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TORCHSAN_OPTIONS": ""}


class Zygote:
    """A process that forks trials, for several threads at once. When it dies, its trials do, and a new one starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._ids = itertools.count()
        self._over = False

    def start(self) -> None:
        """Begin to import, without waiting for it."""
        process = subprocess.Popen(
            [sys.executable, "-c", "from torchsan.cli._trials import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment() | {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for us; the trials are ended, not interrupted.
        )
        self._process = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one request to its end. Raise Stopped when it is all over, InternalError if no process can be had."""
        for _ in range(2):
            answer: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
            with self._lock:
                if self._over:
                    raise Stopped("interrupted")
                if self._process is None or self._process.poll() is not None:
                    self.start()
                assert self._process is not None
                assert self._process.stdin is not None
                id_ = next(self._ids)
                self._waiting[id_] = answer
                with suppress(OSError, ValueError):
                    self._process.stdin.write(json.dumps(request | {"id": id_}) + "\n")
                    self._process.stdin.flush()
            found = answer.get()
            if found is not None:
                return found
        raise InternalError("no process for trials can be started; see `torchsan doctor`", slug="internal-error")

    def stop(self) -> None:
        """End it, and the trials it runs, for good."""
        with self._lock:
            self._over = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"], None)
            if waiting is not None:
                waiting.put(answer)
        process.wait()
        with self._lock:
            waiting_ones, self._waiting = self._waiting, {}
        for waiting in waiting_ones.values():
            waiting.put(None)


@contextmanager
def zygote() -> Iterator[Zygote]:
    """Start one, and end it with the context."""
    made = Zygote()
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Trials:
    """Tells whether candidates show the finding. `write` puts the script of one into a folder and returns its name."""

    def __init__(
        self,
        finding: Finding,
        zygote: Zygote,
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
                raise Stopped("the time limit is reached")
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
        what = f"{len(candidate.nodes)} nodes, {sum(_elements(g) for g in candidate.inputs)} elements"
        self._progress(f"trial {number}: {what}: {'shows it' if good else 'no'} ({seconds:.1f} s)")
        return good

    def _run(self, candidate: Exhibit, folder: Path) -> tuple[bool, float]:
        try:
            script = self._write(candidate, folder)
        except (TorchsanError, RuntimeError, TypeError, ValueError, KeyError, OSError):
            return False, 0.0
        request = {"work": "trial", "folder": str(folder), "script": script, "check": list(self._checks)}
        answer = self._ask(request)
        try:
            findings = Reader(folder / "recording").findings()
        except RecordingError:
            return False, answer["seconds"]
        # A crash after the finding does not take it back; one without it is another failure.
        return not answer["timeout"] and find_same(self._finding, findings) is not None, answer["seconds"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        limit = max(1.0, min(self._limit, self._deadline - time.monotonic()))
        return self._zygote.ask(request | {"loads": list(self._loads), "timeout": limit})

    def evaluate(self, exhibit: Exhibit, folder: Path) -> dict[str, Given]:
        """Return inputs that hold the values of the exhibit's nodes, computed eagerly in a process of their own."""
        (folder / "exhibit.json").write_text(json.dumps(encode(exhibit)))
        self._ask({"work": "evaluate", "folder": str(folder)})
        try:
            values = json.loads((folder / "values.json").read_text())
        except (OSError, ValueError):
            return {}
        return {name: decode(Given, value) for name, value in values.items()}


def _elements(given: Given) -> int:
    n = 1
    for size in given.size:
        n *= size
    return n


def key_of(candidate: Exhibit) -> str:
    """The same for the same candidate, in another process too."""
    return hashlib.sha256(json.dumps(encode(candidate), sort_keys=True).encode()).hexdigest()[:24]
