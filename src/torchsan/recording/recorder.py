"""What a recording takes, whether it writes it to disk or keeps it in memory."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torchsan.records import Coverage, Direction, Finding, GraphId, GraphRecord, Skipped


class Recorder(Protocol):
    """The methods of a Writer that instruments and checks use; none of them raises."""

    def new_graph(self) -> GraphId:
        """Return an id that no graph has yet."""

    def graph(self, graph: GraphRecord) -> None:
        """Record a compiled graph."""

    def artifact(self, name: str, text: str) -> str:
        """Keep a text and return the name it got."""

    def finding(self, finding: Finding) -> Finding:
        """Record a finding and return it with its id."""

    def amend(self, finding: Finding) -> None:
        """Record again a finding that has its id, with more known about it."""

    def skipped(self, what: str, reason: str) -> None:
        """Record that something was not checked, and why."""

    def checked(self, graph: GraphId, direction: Direction, buffers: Iterable[str]) -> None:
        """Record that these buffers of a graph were checked."""

    def ops_checked(self, names: Iterable[str]) -> None:
        """Record that these operator overloads were checked."""

    def event(self, kind: str, body: dict[str, Any]) -> None:
        """Record anything else."""


BufferKey = tuple[GraphId, Direction, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How the program ended: its exit status, or the number of the signal that killed it; neither when unknown."""

    exit: int | None = None
    signal: int | None = None

    @property
    def status(self) -> int | None:
        """The status as a shell reports it: 128 + the signal for a crash."""
        return self.exit if self.signal is None else 128 + self.signal


@dataclass(slots=True)
class State:
    """A running total. Mutable, and guarded by whoever owns it."""

    graphs: dict[tuple[GraphId, Direction], GraphRecord] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[Skipped, None] = field(default_factory=dict)
    checked: set[BufferKey] = field(default_factory=set)
    ops: set[str] = field(default_factory=set)

    def add_graph(self, graph: GraphRecord) -> None:
        """A graph that is recorded again replaces what was known of it."""
        self.graphs[graph.id, graph.direction] = graph

    def amend(self, finding: Finding) -> None:
        """A finding that is recorded again replaces the one with its id."""
        self.findings[:] = [finding if f.id == finding.id else f for f in self.findings]

    def new_buffers(self, graph: GraphId, direction: Direction, buffers: Iterable[str]) -> list[str]:
        """Count the buffers and return those that were not counted before."""
        new = [b for b in dict.fromkeys(buffers) if (graph, direction, b) not in self.checked]
        self.checked.update((graph, direction, b) for b in new)
        return new

    def new_ops(self, names: Iterable[str]) -> list[str]:
        """Count the operators and return those that were not counted before."""
        new = sorted(set(names) - self.ops)
        self.ops.update(new)
        return new

    def _checked_of(self, graph: GraphRecord) -> int:
        """How many of a graph's buffers were checked.

        Checks may look at more than a compiled graph's buffers, such as memory that nobody reads; of a graph without
        kernels they look at outputs and overwritten inputs, by names of their own.
        """
        names = {name for id_, direction, name in self.checked if (id_, direction) == (graph.id, graph.direction)}
        return len(names & set(graph.buffers) if graph.kernels else names)

    @property
    def coverage(self) -> Coverage:
        """What was looked at so far."""
        graphs = self.graphs.values()
        return Coverage(
            graphs=len(graphs),
            kernels=sum(len(g.kernels) for g in graphs),
            buffers=sum(len(g.buffers) for g in graphs),
            buffers_checked=sum(min(len(g.buffers), self._checked_of(g)) for g in graphs),
            ops_checked=len(self.ops),
            skipped=tuple(self.skipped),
        )


class InMemoryRecorder:
    """Takes what a Writer takes, and writes nothing. Thread-safe."""

    def __init__(self) -> None:
        self.on_finding: Callable[[Finding], None] | None = None
        """Called with each finding once it is kept, in the thread that found it."""
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
        if self.on_finding is not None:
            self.on_finding(finding)
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
