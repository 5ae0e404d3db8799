"""What a recording takes, whether it writes it to disk or keeps it in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torchsan.records import Direction, Finding, GraphId, GraphRecord

__all__ = ["Sink"]


class Sink(Protocol):
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
