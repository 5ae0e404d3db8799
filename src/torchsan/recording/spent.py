"""Where the time goes, by part: stretches of work that are charged to a check, to compiling, or to torchsan itself.

What lies inside another stretch counts for the inner one only, so that the parts add up. Importing it imports no torch.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Self, TypeVar

from torchsan.records import Direction, GraphCost, GraphId, GraphRef, LaunchCost, RunCost

COMPILE = "compile"
OWN = "torchsan"
"""What torchsan does that is no check: reading the generated code, recording, timing."""
_OWN_OBSERVERS = ("times", "collector")

P = ParamSpec("P")
R = TypeVar("R")

_Key = tuple[str, GraphRef | None, int | None, bool]
_open: list[Ledger] = []
_here = threading.local()


class Ledger:
    """The time of this process by part, from `open` on until `close`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._seconds: dict[_Key, float] = defaultdict(float)

    def open(self) -> None:
        """Begin to count."""
        self._began = self._clock()
        _open.append(self)

    def charge(self, seconds: float, part: str, graph: GraphRef | None, nth: int | None, later: bool) -> None:
        """Add to a part: as what a graph or a launch of it takes, and as that of a `later` call."""
        self._seconds[part, graph, nth, later] += seconds

    def close(self) -> RunCost:
        """Count no more, and return what it came to."""
        if self in _open:
            _open.remove(self)
        parts: dict[str, float] = defaultdict(float)
        later: dict[str, float] = defaultdict(float)
        graphs: dict[GraphRef, dict[int | None, dict[str, float]]] = {}
        for (name, graph, nth, late), seconds in self._seconds.items():
            part = part_of(name)
            parts[part] += seconds
            if late:
                later[part] += seconds
            if graph is not None:
                sites = graphs.setdefault(graph, {})
                for site in {None, nth}:
                    sites.setdefault(site, defaultdict(float))[part] += seconds
        costs = tuple(
            GraphCost(
                graph=GraphId(ref.id),
                direction=Direction(ref.direction),
                parts=sites.pop(None),
                launches=tuple(
                    LaunchCost(nth=nth, parts=each)
                    for nth, each in sorted(sites.items(), key=lambda i: i[0] or 0)
                    if nth is not None
                ),
            )
            for ref, sites in graphs.items()
        )
        return RunCost(seconds=self._clock() - self._began, parts=parts, later=later, graphs=costs)


def part_of(name: str) -> str:
    """Return the part that the work of an observer counts for, by the observer's name."""
    return OWN if name in _OWN_OBSERVERS else name.removesuffix(" check")


class spent:  # reads as a statement: `with spent("values"): …`
    """Charges the time inside to a part of the run, without what stretches inside of it take."""

    __slots__ = ("_graph", "_later", "_nth", "_outer", "_part", "_start")

    def __init__(
        self, part: str, graph: GraphRef | None = None, nth: int | None = None, *, later: bool = False
    ) -> None:
        self._part = part
        self._graph = graph
        self._nth = nth
        self._later = later

    def __enter__(self) -> Self:
        self._outer = getattr(_here, "inside", 0.0)
        _here.inside = 0.0
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        took = time.perf_counter() - self._start
        own = took - _here.inside
        _here.inside = self._outer + took
        for ledger in _open:
            ledger.charge(own, self._part, self._graph, self._nth, self._later)


def charged(part: str, work: Callable[P, R], *, later: bool = False) -> Callable[P, R]:
    """Return `work`, with the time that it takes charged to a part."""

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with spent(part, later=later):
            return work(*args, **kwargs)

    return call


def charge(seconds: float, part: str) -> None:
    """Add to a part what could not be timed where it was spent."""
    for ledger in _open:
        ledger.charge(seconds, part, None, None, False)
