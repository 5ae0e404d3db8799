"""Which graph of one recording stands for which of the other, and which of their nodes: by content, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchsan.diff.graphs import FxGraph, read_graph
from torchsan.diff.nodes import NodePairs, pair_nodes
from torchsan.recording import Reader
from torchsan.records import Direction, GraphId, GraphRecord

__all__ = ["Graph", "GraphPair", "Pairing", "pair_graphs"]

_RELATED = 0.4
"""How much of two graphs, between 0 and 1, has to be alike for one to stand for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One compiled graph and its nodes."""

    record: GraphRecord
    fx: FxGraph

    @property
    def backward(self) -> bool:
        """Whether it is one. Forward and inference are alike: whether gradients are wanted does not change a value."""
        return self.record.direction is Direction.BACKWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPair:
    """Two graphs that compute the same thing, as far as their nodes do."""

    a: Graph
    b: Graph
    nodes: NodePairs

    @property
    def label(self) -> str:
        """The pair as people write it: one name where both have the same."""
        mine, other = self.a.record.label, self.b.record.label
        return mine if mine == other else f"{mine} / {other}"

    def partner(self, name: str) -> str | None:
        """The node of the second graph that stands for one of the first; None if there is none.

        What is no node of the graph itself is one of a subgraph, which has no pairs but names.
        """
        if name in self.nodes.pairs:
            return self.nodes.pairs[name]
        return name if name not in self.a.fx.by_name and name not in self.b.fx.by_name else None

    def rewritten(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those nodes of the first graph that the second does not compute in the same way from the same."""
        return tuple(name for name in names if not self._same(name))

    def _same(self, name: str) -> bool:
        partner = self.nodes.pairs.get(name)
        if partner is None:
            return False
        x, y = self.a.fx.by_name[name], self.b.fx.by_name[partner]
        return x.written == y.written and tuple(self.nodes.pairs.get(p) for p in x.parents) == y.parents


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The pairs, in the order of the first recording, and the graphs that only one of the two has."""

    pairs: tuple[GraphPair, ...]
    only_a: tuple[Graph, ...]
    only_b: tuple[Graph, ...]


def pair_graphs(a: Reader, b: Reader) -> Pairing:
    """Pair the graphs of two recordings: forward and backward of one graph stay together, and the order is kept."""
    mine, other = _graphs(a), _graphs(b)
    pairs: list[GraphPair] = []
    for x, y in _alignment(list(mine.values()), list(other.values())):
        pairs += _directions(x, y)
    taken = {id(g) for pair in pairs for g in (pair.a, pair.b)}
    return Pairing(
        pairs=tuple(pairs),
        only_a=tuple(g for group in mine.values() for g in group if id(g) not in taken),
        only_b=tuple(g for group in other.values() for g in group if id(g) not in taken),
    )


def _graphs(recording: Reader) -> dict[GraphId, list[Graph]]:
    """The graphs by their number, each number's backward last."""
    groups: dict[GraphId, list[Graph]] = {}
    for record in recording.graphs():
        groups.setdefault(record.id, []).append(Graph(record=record, fx=read_graph(recording, record)))
    return {number: sorted(group, key=lambda g: g.backward) for number, group in groups.items()}


def _directions(mine: Sequence[Graph], other: Sequence[Graph]) -> list[GraphPair]:
    found: list[GraphPair] = []
    for a in mine:
        b = next((g for g in other if g.backward == a.backward and all(p.b is not g for p in found)), None)
        if b is not None:
            forward = found[0].nodes if found and a.backward else None
            found.append(GraphPair(a=a, b=b, nodes=pair_nodes(a.fx, b.fx, forward)))
    return found


def _alignment(mine: Sequence[list[Graph]], other: Sequence[list[Graph]]) -> list[tuple[list[Graph], list[Graph]]]:
    """The pairs, in order on both sides, that are alike most in sum."""
    left, right = [_Features(group) for group in mine], [_Features(group) for group in other]
    scores = [[x.likeness(y) for y in right] for x in left]
    best = [[0.0] * (len(other) + 1) for _ in range(len(mine) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        for j in range(len(other) - 1, -1, -1):
            together = scores[i][j] + best[i + 1][j + 1] if scores[i][j] >= _RELATED else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], together)
    found = []
    i = j = 0
    while i < len(mine) and j < len(other):
        if scores[i][j] >= _RELATED and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            found.append((mine[i], other[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


class _Features:
    """What a graph is recognised by: its operators and lines of source; where nothing else is known, its names."""

    def __init__(self, group: Sequence[Graph]) -> None:
        fx = group[0].fx
        computed = [n for n in fx.nodes if n.name not in fx.inputs]
        self._backward = group[0].backward
        self._complete = fx.complete
        self._names = Counter(n.name for n in computed)
        self._ops = Counter(n.op for n in computed)
        self._code = Counter(n.source.code if n.source is not None else "" for n in computed)

    def likeness(self, other: _Features) -> float:
        """1 for graphs of the same operators and lines of source, 0 for graphs that have nothing in common."""
        if self._backward != other._backward:
            return 0.0
        if not (self._complete and other._complete):
            return _overlap(self._names, other._names)
        return (_overlap(self._ops, other._ops) + _overlap(self._code, other._code)) / 2


def _overlap(x: Counter[str], y: Counter[str]) -> float:
    total = max(x.total(), y.total())
    return (x & y).total() / total if total else 1.0
