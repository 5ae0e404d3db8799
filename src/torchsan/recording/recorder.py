"""What a run recorded so far, in memory, and on disk as it happens. Never takes the program down while doing so."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import re
import sqlite3
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError
from torchsan.options import Options
from torchsan.recording.flight import Flight
from torchsan.recording.folder import ARTIFACTS, EVENTS, create_folder, write_atomically
from torchsan.recording.log import EventLog, connect, insert, make_single_file
from torchsan.records import (
    CallCount,
    Check,
    Coverage,
    Direction,
    Finding,
    Gap,
    GraphId,
    GraphRecord,
    InFlight,
    Skipped,
    encode,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How the program ended: its exit status, or the number of the signal that killed it; neither when unknown."""

    exit: int | None = None
    signal: int | None = None

    @property
    def status(self) -> int | None:
        """The status as a shell reports it: 128 + the signal for a crash."""
        return self.exit if self.signal is None else 128 + self.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Buffers of a graph that were checked, and by what; older recordings do not say that."""

    graph: GraphId
    direction: Direction
    buffers: tuple[str, ...]
    check: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsChecked:
    """Operator overloads that were checked."""

    ops: tuple[str, ...]


COUNTED: dict[str, type[Any]] = {
    "graph": GraphRecord,
    "finding": Finding,
    "amended": Finding,
    "skipped": Skipped,
    "checked": Checked,
    "ops-checked": OpsChecked,
    "calls": CallCount,
    "gap": Gap,
}
"""The kinds of events that State adds up, and what their bodies are."""

KINDS = frozenset(COUNTED) | frozenset(
    "artifact cached closed cost degraded exhibit failed forecast in-flight incomplete memory no-exhibit nodes program "
    "rank replica-step replicas sampling seed started stopped times watched".split()
)
"""All kinds of events. A recording with another is damaged, or of a newer torchsan: it is not called clean."""


_BULKY = ("replica-step", "times", "watched")
"""The kinds of events that come again and again for as long as a program runs."""
_OVERHEAD = 64
"""What an event takes in the log beside its text, in bytes."""
_LEAST_LOG = 4 << 20
"""Bytes that the log may take however little is allowed."""


@dataclass(slots=True)
class State:
    """A running total of events, of those that are written and of those that are read. Guarded by whoever owns it."""

    graphs: dict[tuple[GraphId, Direction], GraphRecord] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[Skipped, None] = field(default_factory=dict)
    checked: dict[tuple[GraphId, Direction], dict[Check | None, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    ops: set[str] = field(default_factory=set)
    calls: dict[tuple[GraphId, Direction], CallCount] = field(default_factory=dict)
    gaps: Counter[Gap] = field(default_factory=Counter)

    def add(self, kind: str, body: Any) -> Any:
        """Add an event, and return what of it was not known before: all, some or None.

        A graph replaces the one of its id and direction, an amended finding the one of its id.
        """
        match kind, body:
            case "graph", GraphRecord():
                self.graphs[body.id, body.direction] = body
            case "finding", Finding():
                self.findings.append(body)
            case "amended", Finding():
                self._amend(body)
            case "skipped", Skipped():
                if body in self.skipped:
                    return None
                self.skipped[body] = None
            case "checked", Checked(graph=graph, direction=direction, check=check):
                known = self.checked[graph, direction][check]
                new = [b for b in dict.fromkeys(body.buffers) if b not in known]
                known.update(new)
                return dataclasses.replace(body, buffers=tuple(new)) if new else None
            case "ops-checked", OpsChecked():
                names = sorted({*body.ops} - self.ops)
                self.ops.update(names)
                return OpsChecked(ops=tuple(names)) if names else None
            case "calls", CallCount():
                self.calls[body.graph, body.direction] = body
            case "gap", Gap():
                self.gaps[dataclasses.replace(body, times=1)] += body.times
        return body

    def _amend(self, finding: Finding) -> None:
        """Put a finding in the place of the one of its id, which says what place that is.

        One that is not there is in a damaged recording: it is added, and then the ids are not in order.
        """
        number = re.fullmatch(r"F([1-9][0-9]{0,8})", finding.id)
        place = int(number[1]) - 1 if number is not None else len(self.findings)
        if place < len(self.findings) and self.findings[place].id == finding.id:
            self.findings[place] = finding
        else:
            self.findings.append(finding)

    def checked_of(self, graph: GraphId, direction: Direction, by: Check | None = None) -> frozenset[str]:
        """The buffers of a graph that were checked, by one check or by any."""
        each = self.checked.get((graph, direction), {})
        return frozenset().union(*(names for check, names in each.items() if by is None or check in (by, None)))

    def _count_checked(self, graph: GraphRecord) -> int:
        """How many of a graph's buffers were checked.

        Checks may look at more than a compiled graph's buffers, such as memory that nobody reads; of a graph without
        kernels they look at outputs and overwritten inputs, by names of their own.
        """
        names = self.checked_of(graph.id, graph.direction)
        return min(len(graph.buffers), len(names.intersection(graph.buffers) if graph.kernels else names))

    @property
    def coverage(self) -> Coverage:
        """What was looked at so far."""
        graphs = self.graphs.values()
        return Coverage(
            graphs=len(graphs),
            kernels=sum(len(g.kernels) for g in graphs),
            buffers=sum(len(g.buffers) for g in graphs),
            buffers_checked=sum(map(self._count_checked, graphs)),
            ops_checked=len(self.ops),
            skipped=tuple(self.skipped),
            gaps=tuple(dataclasses.replace(gap, times=times) for gap, times in self.gaps.items()),
        )


class Recorder:
    """Takes what watches and checks see, and keeps it in memory. Thread-safe; no method raises.

    A subclass keeps more of it, by `_write` and `artifact`.
    """

    keeps_artifacts = False
    """Whether texts are kept, so that it is worth making them."""

    def __init__(self) -> None:
        self.on_finding: Callable[[Finding], None] | None = None
        """Called with each finding once it is recorded, in the thread that found it."""
        self.step: Callable[[], int | None] = lambda: None
        """Which training step this process is in, from 0, if that is known."""
        self.max_bytes: int | None = None
        """How large the log may become; None for no limit."""
        self.flight: Flight | None = None
        """Where to note which launch runs, for when it kills the process."""
        # Re-entrant, because a finalizer may report something while this thread is inside the recorder.
        self._lock = threading.RLock()
        self._state = State()
        self._graph_ids = itertools.count()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far."""
        return tuple(self._state.findings)

    @property
    def coverage(self) -> Coverage:
        """What was looked at so far."""
        with self._lock:
            return self._state.coverage

    def new_graph(self) -> GraphId:
        """Return an id that no graph of this run has yet."""
        return GraphId(next(self._graph_ids))

    def graph(self, graph: GraphRecord) -> None:
        """Record a compiled graph; the same id and direction again replaces it."""
        self.event("graph", graph)

    def artifact(self, name: str, text: str) -> str:
        """Keep a text, such as generated source, and return the name it got. In memory nothing is kept of it."""
        return name

    def finding(self, finding: Finding) -> Finding:
        """Record a finding and return it with its id."""
        if self._inert():
            return finding
        with self._lock:
            now = time.time() if finding.time is None else finding.time
            step = self.step() if finding.step is None else finding.step
            finding = dataclasses.replace(finding, id=f"F{len(self._state.findings) + 1}", time=now, step=step)
            self.event("finding", finding)
        if self.on_finding is not None:
            self.on_finding(finding)
        return finding

    def amend(self, finding: Finding) -> None:
        """Record again a finding that has its id, with more known about it."""
        self.event("amended", finding)

    def skipped(self, what: str, reason: str) -> None:
        """Record that something was not checked, and why; the same again is not recorded again."""
        self.event("skipped", Skipped(what=what, reason=reason))

    def checked(self, graph: GraphId, direction: Direction, buffers: Iterable[str], check: Check | None = None) -> None:
        """Record that a check has looked at these buffers of a graph; each counts the first time."""
        self.event("checked", Checked(graph=graph, direction=direction, buffers=tuple(buffers), check=check))

    def ops_checked(self, names: Iterable[str]) -> None:
        """Record that these operator overloads were checked; each counts the first time."""
        self.event("ops-checked", OpsChecked(ops=tuple(names)))

    def gap(self, gap: Gap) -> None:
        """Record where the user's program was not compiled, or once more; the same again is counted."""
        self.event("gap", gap)

    def event(self, kind: str, body: Any) -> None:
        """Record anything; `body` is a record, or a dict of records and plain values."""
        if self._inert():
            return
        with self._lock:
            new = self._state.add(kind, body)
            if new is not None:
                self._write(kind, new)

    def _inert(self) -> bool:
        """Whether nothing is recorded any more. Asked without the lock."""
        return False

    def _write(self, kind: str, body: Any) -> None:
        """Keep an event beyond the totals. Called with the lock."""


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer(Recorder):
    """A recorder that also writes everything to disk. Inert in a forked child, after `close` and when the disk fails.

    After it was created no method raises: when something cannot be written, `degraded` says why, standard error says
    so once, and the totals (`findings`, `coverage`) go on counting in memory.
    """

    keeps_artifacts = True

    def __init__(self, folder: Path) -> None:
        """Write to the recording that `create_folder` made in `folder`. Raise UsageError if that cannot be.

        A disk that is too full for the log is no reason to raise: then this is inert from the beginning.
        """
        super().__init__()
        self.path = folder
        self.degraded: str | None = None
        self._pid = os.getpid()
        self._artifacts: set[str] = set()
        self._appended = self._bulk = 0
        """The bytes of the events in the log, about, and of those that can be dropped."""
        self._log: EventLog | None = None
        try:
            self._log = EventLog(folder)
        except sqlite3.Error as e:
            if not _lacks_space(e):
                raise UsageError(
                    f"cannot write a recording to {folder}: {e}; choose another --out", slug="unwritable-out"
                ) from e
            self._degrade(f"cannot write to {folder}: {e}")
        _writers.add(self)

    @classmethod
    def create(
        cls, path: str | Path | None, *, command: Sequence[str], options: Options | None = None, seed: int | None = None
    ) -> Writer:
        """Create a recording at `path`, or at `torchsan-runs/<time>`; raise UsageError if that cannot be."""
        return cls(create_folder(path, command=command, options=options, seed=seed))

    def finding(self, finding: Finding) -> Finding:
        """Record a finding and return it with its id. One that no log takes any more is said at once, in a line."""
        finding = super().finding(finding)
        if self.degraded is not None and self._log is None and not self._inert():
            text = f"{finding.id}: {finding.severity}: {finding.kind}: {finding.message}"
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"torchsan: not recorded: {' '.join(text.split())}\n")
        return finding

    def artifact(self, name: str, text: str) -> str:
        """Keep a text, such as generated source, and return the name it got: like `name`, safe and unique."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")[:100] or "artifact"
        if self._inert():
            return safe
        with self._lock:
            unique, n = safe, 1
            while unique in self._artifacts:
                n += 1
                stem, dot, suffix = safe.rpartition(".")
                unique = f"{stem}-{n}.{suffix}" if dot else f"{safe}-{n}"
            self._artifacts.add(unique)
            try:
                write_atomically(self.path / ARTIFACTS / unique, text)
            except OSError as e:
                self._degrade(f"cannot keep {unique}: {e}")
            return unique

    def close(self) -> None:
        """Record that the session ended in good order, and let go of the file. Does nothing the second time."""
        if self._inert():
            return
        with self._lock:
            self._write("closed", {})
            self._drop()

    def _inert(self) -> bool:
        # The lock may be held for ever in a forked child, so this comes before taking it.
        return os.getpid() != self._pid

    def _write(self, kind: str, body: Any) -> None:
        if self._log is None:
            return
        try:
            text = json.dumps(encode(body), allow_nan=False)
            self._log.append(kind, text)
            self._appended += len(text) + _OVERHEAD
            self._bulk += (len(text) + _OVERHEAD) * (kind in _BULKY)
            if self.max_bytes is not None and self._appended > max(self.max_bytes, _LEAST_LOG):
                self._roll(self._log)
        except (TypeError, ValueError, RecursionError) as e:
            self._degrade(f"a {kind} could not be recorded: {e}")
        except (OSError, sqlite3.Error) as e:
            self._degrade(f"cannot write to {self.path}: {e}")
            self._drop()

    def _roll(self, log: EventLog) -> None:
        """Drop older events of the kinds that come with every step, if they are much of the log."""
        if self._bulk < self._appended / 2:
            self.max_bytes = None  # What is large is what must stay.
            return
        self._appended -= self._bulk * 3 // 4
        self._bulk //= 4
        if log.roll(_BULKY):
            reason = "the log has reached --max-bytes; the newest of them are kept"
            self.skipped(f"earlier events of the kinds {', '.join(_BULKY)}", reason)

    def _degrade(self, reason: str) -> None:
        if self.degraded is not None:
            return
        self.degraded = reason
        with suppress(OSError, ValueError, AttributeError):  # Standard error may be closed, or absent.
            sys.stderr.write(f"torchsan: the recording is incomplete: {reason}; the program goes on\n")
        self._write("degraded", {"reason": reason})

    def _drop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _lacks_space(error: sqlite3.Error) -> bool:
    """Whether the disk fails to take a database: of some files SQLite says only that they cannot be extended."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)  # The rest of it is about the file and the call.


def _after_fork() -> None:
    for writer in _writers:
        # Forgotten and not closed, since closing would checkpoint the parent's log.
        writer._log = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def finalize(
    folder: Path, program: Program | None, unchecked: Iterable[Skipped] = (), in_flight: Iterable[InFlight] = ()
) -> None:
    """Record how the program ended, if that is known, and make the log a single file. Raise nothing.

    `unchecked` is what turned out not to have been checked, beside what the program's own process has recorded, and
    `in_flight` what ran when it died.
    """
    file = folder / EVENTS
    if file.is_symlink() or (file.exists() and file.stat().st_nlink != 1):
        _log.debug("%s is not the log that was made there", file)
        return
    try:
        with closing(connect(folder)) as connection:
            if program is not None:
                insert(connection, 0, "program", json.dumps(encode(program)))
            for launch in in_flight:
                insert(connection, 0, "in-flight", json.dumps(encode(launch)))
            for one in unchecked:
                for kind in ("skipped", "incomplete"):
                    insert(connection, 0, kind, json.dumps(encode(one)))
            make_single_file(connection)
    except sqlite3.Error:
        _log.debug("cannot finalize %s", folder, exc_info=True)
