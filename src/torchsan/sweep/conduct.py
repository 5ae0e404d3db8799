"""Carries a sweep out: leaves out what has a result, keeps what comes, shows how far it is, stops when it is told to.

Importing it imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TextIO

from torchsan.report.findings import count
from torchsan.repro.trial_server import Stopped
from torchsan.sweep.programs import Program, address
from torchsan.sweep.results import Result, Results
from torchsan.sweep.triage import prints_of

Engine = Callable[[Iterator[Program]], Iterator[Result]]
"""Yields what comes of programs, in any order."""

_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""


@dataclass(slots=True, kw_only=True)
class Conducted:
    """What came of a sweep, and how many results were there before. `interrupted`: by Ctrl-C."""

    results: list[Result] = field(default_factory=list)
    reused: int = 0
    interrupted: bool = False


class Progress:
    """A line on `stream` that says how far a sweep is, how fast, and how long it still takes; None for no line."""

    def __init__(self, stream: TextIO | None, total: int | None, seconds: float | None) -> None:
        """`total` is how many programs there are, `seconds` how long it may take, as far as that is known."""
        self._stream = stream
        self._total = total
        self._seconds = seconds
        self._start = self._shown = time.monotonic()
        self._width = 0

    def show(self, done: int, reused: int, found: int) -> None:
        """Show it, in its own place on a terminal, else as a line now and then."""
        now = time.monotonic()
        if self._stream is None or (now - self._shown < (0.5 if self._stream.isatty() else _EVERY)):
            return
        self._shown = now
        text = self.text(done, reused, found, now - self._start)
        if self._stream.isatty():
            self._stream.write(f"\r{text:<{self._width}}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def text(self, done: int, reused: int, found: int, elapsed: float) -> str:
        """Return the line."""
        fresh = done - reused
        rate = fresh / elapsed if elapsed else 0.0
        left = [] if self._seconds is None else [max(0.0, self._seconds - elapsed)]
        if self._total is not None and rate:
            left.append((self._total - done) / rate)
        of = f"{done} of {count(self._total, 'program')}" if self._total is not None else count(done, "program")
        about = f", about {_time(min(left))} left" if left else ""
        return f"torchsan: {of}, {rate * 60:.1f} a minute, {count(found, 'find')}{about}"

    def close(self) -> None:
        """End the line, on a terminal."""
        if self._stream is not None and self._width:
            self._stream.write("\n")
            self._stream.flush()


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def conduct(
    programs: Iterable[Program],
    key: str,
    results: Results,
    engine: Engine,
    progress: Progress,
    *,
    seconds: float | None = None,
    watch: Callable[[Result], None] = lambda result: None,
) -> Conducted:
    """Judge the programs that have no result yet, for at most so many seconds; Ctrl-C stops it, too.

    `watch` is told of each result, also of those from before. What was found is kept whatever happens.
    """
    done = Conducted()
    found: set[str] = set()
    deadline = None if seconds is None else time.monotonic() + seconds

    def take(result: Result) -> None:
        done.results.append(result)
        found.update(prints_of(result))
        watch(result)
        progress.show(len(done.results), done.reused, len(found))

    def fresh() -> Iterator[Program]:
        for program in programs:
            if deadline is not None and time.monotonic() > deadline:
                return
            earlier = results.get(address(program, key))
            if earlier is None:
                yield program
            else:
                done.reused += 1
                take(replace(earlier, program=program))

    try:
        for result in engine(fresh()):
            results.add(result)
            take(result)
    except (KeyboardInterrupt, Stopped):
        done.interrupted = True
    finally:
        progress.close()
    return done
