"""The findings of a check that is used without a recording: kept in memory, with the writer's methods."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterable
from typing import Any

from torchsan.recording.state import State
from torchsan.records import Coverage, Direction, Finding, GraphId, GraphRecord, Skipped

__all__ = ["Memory"]


class Memory:
    """Takes what a Writer takes, and writes nothing. Thread-safe."""

    def __init__(self) -> None:
        self._state = State()
        self._lock = threading.RLock()
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
        """Return an id that no graph has yet."""
        return GraphId(next(self._graph_ids))

    def graph(self, graph: GraphRecord) -> None:
        """Count a compiled graph."""
        with self._lock:
            self._state.add_graph(graph)

    def artifact(self, name: str, text: str) -> str:
        """Nothing is kept; the name is as good as any."""
        return name

    def finding(self, finding: Finding) -> Finding:
        """Keep a finding and return it with its id."""
        with self._lock:
            finding = dataclasses.replace(finding, id=f"F{len(self._state.findings) + 1}")
            self._state.findings.append(finding)
            return finding

    def amend(self, finding: Finding) -> None:
        """Put a finding in the place of the one with its id."""
        with self._lock:
            self._state.amend(finding)

    def skipped(self, what: str, reason: str) -> None:
        """Keep what was not checked, and why."""
        with self._lock:
            self._state.skipped[Skipped(what=what, reason=reason)] = None

    def checked(self, graph: GraphId, direction: Direction, buffers: Iterable[str]) -> None:
        """Count checked buffers."""
        with self._lock:
            self._state.new_buffers(graph, direction, buffers)

    def ops_checked(self, names: Iterable[str]) -> None:
        """Count checked operators."""
        with self._lock:
            self._state.new_ops(names)

    def event(self, kind: str, body: dict[str, Any]) -> None:
        """Nothing else is kept."""
