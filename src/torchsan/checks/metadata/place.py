"""Where a call happens: in eager code, or in a launch of a compiled program on this thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from torchsan.instruments.callers import caller
from torchsan.records import GraphRef, SourceLine, Stage

__all__ = ["Place", "enter_place", "leave_place", "place"]

_here = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a finding says of the place."""

    stage: Stage = Stage.EAGER
    graph: GraphRef | None = None
    kernel: str | None = None
    buffer: str | None = None
    nodes: tuple[str, ...] = ()
    source: tuple[SourceLine, ...] = field(default_factory=caller)

    def where(self) -> dict[str, Any]:
        """The place as the fields of a report, without its stage."""
        return {
            "graph": self.graph,
            "kernel": self.kernel,
            "buffer": self.buffer,
            "nodes": self.nodes,
            "source": self.source,
        }


def place() -> Place:
    """The launch that is running on this thread, or eager code."""
    return getattr(_here, "place", None) or Place()


def enter_place(new: Place) -> None:
    """From now on calls on this thread happen there."""
    _here.place = new


def leave_place() -> None:
    """Calls on this thread happen in eager code again."""
    _here.place = None
