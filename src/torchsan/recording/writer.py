"""Writes one run to disk as it happens, and never takes the program down while doing so."""

from __future__ import annotations

import ctypes
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError
from torchsan.options import Options
from torchsan.recording import log
from torchsan.recording.folder import ARTIFACTS, create_folder, write_atomically
from torchsan.recording.recorder import Program, State
from torchsan.records import Coverage, Direction, Finding, GraphId, GraphRecord, Skipped, encode

_log = logging.getLogger(__name__)
_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer:
    """The recording of this process. Thread-safe; inert in a forked child, after `close` and when the disk fails.

    After it was created no method raises: when something cannot be written, `degraded` says why, standard error says
    so once, and the totals (`findings`, `coverage`) go on counting in memory.
    """

    def __init__(self, folder: Path) -> None:
        """Write to the recording that `create_folder` made in `folder`. Raise UsageError if that cannot be."""
        self.path = folder
        self.degraded: str | None = None
        self.on_finding: Callable[[Finding], None] | None = None
        """Called with each finding once it is recorded, in the thread that found it."""
        self._pid = os.getpid()
        # Re-entrant, because a finalizer may report something while this thread is inside the writer.
        self._lock = threading.RLock()
        self._state = State()
        self._artifacts: set[str] = set()
        self._graph_ids = itertools.count()
        try:
            self._connection: sqlite3.Connection | None = log.connect(folder)
        except sqlite3.Error as e:
            raise UsageError(
                f"cannot write a recording to {folder}: {e}; choose another --out", slug="unwritable-out"
            ) from e
        _writers.add(self)

    @classmethod
    def create(
        cls, path: str | Path | None, *, command: Sequence[str], options: Options | None = None, seed: int | None = None
    ) -> Writer:
        """Create a recording at `path`, or at `torchsan-runs/<time>`; raise UsageError if that cannot be."""
        return cls(create_folder(path, command=command, options=options, seed=seed))

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
        if self._inert():
            return
        with self._lock:
            self._state.add_graph(graph)
            self._write("graph", graph)

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

    def finding(self, finding: Finding) -> Finding:
        """Record a finding and return it with its id."""
        if self._inert():
            return finding
        with self._lock:
            finding = dataclasses.replace(finding, id=f"F{len(self._state.findings) + 1}")
            self._state.findings.append(finding)
            self._write("finding", finding)
        if self.on_finding is not None:
            self.on_finding(finding)
        return finding

    def amend(self, finding: Finding) -> None:
        """Record again a finding that has its id, with more known about it."""
        if self._inert():
            return
        with self._lock:
            self._state.amend(finding)
            self._write("amended", finding)

    def skipped(self, what: str, reason: str) -> None:
        """Record that something was not checked, and why; the same again is not recorded again."""
        skipped = Skipped(what=what, reason=reason)
        if self._inert() or skipped in self._state.skipped:
            return
        with self._lock:
            self._state.skipped[skipped] = None
            self._write("skipped", skipped)

    def checked(self, graph: GraphId, direction: Direction, buffers: Iterable[str]) -> None:
        """Record that these buffers of a graph were checked; each counts the first time."""
        if self._inert():
            return
        with self._lock:
            if new := self._state.new_buffers(graph, direction, buffers):
                self._write("checked", {"graph": graph, "direction": direction, "buffers": new})

    def ops_checked(self, names: Iterable[str]) -> None:
        """Record that these operator overloads were checked; each counts the first time."""
        if self._inert():
            return
        with self._lock:
            if new := self._state.new_ops(names):
                self._write("ops-checked", {"ops": new})

    def event(self, kind: str, body: dict[str, Any]) -> None:
        """Record anything else; `body` holds records and plain values."""
        if self._inert():
            return
        with self._lock:
            self._write(kind, body)

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
        if self._connection is None:
            return
        try:
            text = json.dumps(encode(body), allow_nan=False)
            log.insert(self._connection, time.time(), threading.get_native_id(), kind, text)
        except (TypeError, ValueError, RecursionError) as e:
            self._degrade(f"a {kind} could not be recorded: {e}")
        except (OSError, sqlite3.Error) as e:
            self._degrade(f"cannot write to {self.path}: {e}")
            self._drop()

    def _degrade(self, reason: str) -> None:
        if self.degraded is not None:
            return
        self.degraded = reason
        with suppress(OSError, ValueError, AttributeError):  # Standard error may be closed, or absent.
            sys.stderr.write(f"torchsan: the recording is incomplete: {reason}; the program goes on\n")
        self._write("degraded", {"reason": reason})

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _after_fork_in_child(self) -> None:
        """Forget the parent's connection without closing it: closing would checkpoint the parent's log."""
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None


def finalize(folder: Path, program: Program | None) -> None:
    """Record how the program ended, if that is known, and make the log a single file. Raise nothing."""
    try:
        connection = log.connect(folder)
    except sqlite3.Error:
        _log.debug("cannot finalize %s", folder, exc_info=True)
        return
    try:
        if program is not None:
            log.insert(connection, time.time(), 0, "program", json.dumps(encode(program)))
        log.make_single_file(connection)
    except sqlite3.Error:
        _log.debug("cannot finalize %s", folder, exc_info=True)
    finally:
        connection.close()


def _after_fork() -> None:
    for writer in _writers:
        writer._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
