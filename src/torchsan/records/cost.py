"""Where the time of a run went: seconds by part, the parts being `compile`, the checks by their names, and others."""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.records.program import Direction, GraphId


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """What the checks of the launch site `nth` took."""

    nth: int
    parts: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCost:
    """What the checks of the calls of a compiled graph took, that of its launches included."""

    graph: GraphId
    direction: Direction
    parts: dict[str, float]
    launches: tuple[LaunchCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The seconds of a session, and those of its parts, none of them counted twice; the program has the rest.

    `later` is what of them went into calls after the first of their kind, of which one may ask for fewer.
    """

    seconds: float
    parts: dict[str, float]
    later: dict[str, float]
    graphs: tuple[GraphCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """How long a checked call takes: `seconds` until now for `done` of its `launches`, which alone took `plain`.

    `left` is how much longer the checks of this call, or of those to come, will take, about; None if every call is
    checked, so that there is no end to it.
    """

    graph: GraphId
    direction: Direction
    call: int
    done: int
    launches: int
    seconds: float
    plain: float
    left: float | None
