"""Texts that came of a compile and are in the recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torchsan.records.finding import Stage
from torchsan.records.program import Direction, GraphId


class ArtifactKind(StrEnum):
    """What a text of a recording is, beside the wrapper and the graph that a GraphRecord names."""

    STAGE_GRAPH = "stage graph"
    """The graph at the end of a stage of the compiler."""
    CACHE_ENTRY = "cache entry"
    """What a compile cache has for a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRecord:
    """A text of the recording that came of the compile of a graph. `name` is its file there.

    `passes` are the graph passes that changed a graph of a stage; `facts` what is known of a cache entry.
    """

    kind: ArtifactKind
    name: str
    graph: GraphId
    direction: Direction
    stage: Stage | None = None
    passes: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
