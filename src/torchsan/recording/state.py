"""What the events of a run add up to; the writer keeps it while it writes, the reader builds it from the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchsan.records import Coverage, Direction, Finding, GraphId, GraphRecord, Skipped

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
