"""Which graph of one recording stands for which of the other, and which of their nodes: by content, in order."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torchsan.graphs.printed import FxGraph, FxNode, read_graph
from torchsan.recording import Reader
from torchsan.records import Direction, GraphId, GraphNodes, GraphRecord, decode

T = TypeVar("T")

_RELATED = 0.4
"""How much of two graphs, between 0 and 1, has to be alike for one to stand for the other."""
_MOST_SCORES = 250_000
"""Of pairs of graphs: those of 500 graphs with as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePairs:
    """The pairs, by the name in the first graph; `same` are those that compute the same from the same inputs."""

    pairs: dict[str, str]
    same: frozenset[str]
    nodes: frozenset[str] = frozenset()
    """All nodes of the two graphs that are no inputs."""


def pair_nodes(a: FxGraph, b: FxGraph, forward: NodePairs | None = None) -> NodePairs:
    """Pair the nodes of two graphs of one program. A node has at most one partner, and may have none.

    `forward` are the pairs of the forward graphs: what a backward is given was computed there, under the same name.
    """
    matching = _Matching(a, b)
    nodes = frozenset(n.name for g in (a, b) for n in g.nodes if n.name not in g.inputs)
    if not (a.complete and b.complete):
        matching.by_name()
        return NodePairs(pairs=matching.pairs, same=frozenset(), nodes=nodes)
    matching.inputs(forward)
    same = matching.from_the_inputs()
    matching.from_the_outputs()
    matching.by_lines()
    return NodePairs(pairs=matching.pairs, same=same, nodes=nodes)


class _Matching:
    def __init__(self, a: FxGraph, b: FxGraph) -> None:
        self._a = a
        self._b = b
        self.pairs: dict[str, str] = {}
        self._taken: set[str] = set()

    def by_name(self) -> None:
        for name in self._a.by_name:
            if name in self._b.by_name:
                self._pair(name, name)

    def inputs(self, forward: NodePairs | None) -> None:
        """Pair inputs by their position; where one graph has more of them, by dtype and shape, in order.

        Of a backward, what the forward computed is paired as it was there, or not at all.
        """
        saved = forward.nodes if forward is not None else frozenset()
        for x in self._a.inputs:
            y = forward.pairs.get(x) if forward is not None else None
            if y is not None and y in self._b.inputs:
                self._pair(x, y)
        mine = tuple(n for n in self._a.inputs if n not in self.pairs and n not in saved)
        other = tuple(n for n in self._b.inputs if n not in self._taken and n not in saved)
        pairs: Iterable[tuple[str, str]] = zip(mine, other, strict=False)
        if len(mine) != len(other):
            kinds = [
                [(graph.by_name[n].kind, n) for n in names] for graph, names in ((self._a, mine), (self._b, other))
            ]
            pairs = _in_order(*kinds)
        for x, y in pairs:
            self._pair(x, y)

    def from_the_inputs(self) -> frozenset[str]:
        """Pair nodes that apply the same operator to the same arguments; return them and the paired inputs."""
        waiting: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for node in self._b.nodes:
            if node.name not in self._taken:
                waiting[node.written, node.parents].append(node.name)
        same = set(self.pairs)
        for node in self._a.nodes:
            if node.name in self.pairs or any(p not in same for p in node.parents):
                continue
            found = waiting.get((node.written, tuple(self.pairs[p] for p in node.parents)))
            if found:
                self._pair(node.name, found.pop(0))
                same.add(node.name)
        return frozenset(same)

    def from_the_outputs(self) -> None:
        """Pair what is returned in the same place, and then what that is computed from."""
        whole = len(self._a.outputs) == len(self._b.outputs)
        for x, y in zip(self._a.outputs, self._b.outputs, strict=False):
            if x is None or y is None or x not in self._a.by_name or y not in self._b.by_name:
                continue
            if not whole and self._a.by_name[x].op != self._b.by_name[y].op:
                return  # What a forward keeps for the backward has no fixed place.
            self._upwards(x, y)

    def _upwards(self, x: str, y: str) -> None:
        stack = [(x, y)]
        while stack:
            x, y = stack.pop()
            if not self._pair(x, y):
                continue
            one, two = self._a.by_name[x], self._b.by_name[y]
            if one.op == two.op and len(one.parents) == len(two.parents):
                stack += zip(one.parents, two.parents, strict=True)

    def by_lines(self) -> None:
        """Pair the rest: lines of the user's program that became the same operators, then any equal runs of them."""
        for with_code in (True, False):
            mine, other = (
                _blocks([n for n in graph.nodes if n.name not in done and n.expression is not None], with_code)
                for graph, done in ((self._a, self.pairs), (self._b, self._taken))
            )
            for block, like in _in_order(mine, other):
                for x, y in zip(block, like, strict=True):
                    self._upwards(x.name, y.name)

    def _pair(self, x: str, y: str) -> bool:
        if x in self.pairs or y in self._taken:
            return False
        self.pairs[x] = y
        self._taken.add(y)
        return True


def _blocks(nodes: Sequence[FxNode], with_code: bool) -> list[tuple[Hashable, list[FxNode]]]:
    """Return runs of nodes that come from one line of the program, each with the key that it is matched by."""
    runs = [list(run) for _, run in itertools.groupby(nodes, key=lambda n: n.source)]
    return [((run[0].code if with_code else "", *((n.op, n.kind) for n in run)), run) for run in runs]


def _in_order(mine: Sequence[tuple[Hashable, T]], other: Sequence[tuple[Hashable, T]]) -> Iterator[tuple[T, T]]:
    """Yield pairs of items with the same key, in the order of both sides. Each item comes with its key before it."""
    matcher = difflib.SequenceMatcher(None, [key for key, _ in mine], [key for key, _ in other], autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        yield from ((mine[i + n][1], other[j + n][1]) for n in range(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One compiled graph and its nodes. `called` is what the user calls its inputs, by their names in the graph."""

    record: GraphRecord
    fx: FxGraph
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def backward(self) -> bool:
        """Whether it is a backward. Forward and inference graphs are compared: they compute the same values."""
        return self.record.direction is Direction.BACKWARD

    def text(self, node: FxNode) -> str:
        """A node as people write it, with inputs called as the user calls them."""
        names = [re.escape(name) for name in node.parents if name in self.called]
        return re.sub(rf"\b(?:{'|'.join(names)})\b", lambda m: self.called[m[0]], node.text) if names else node.text


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPair:
    """Two graphs that compute the same thing, as far as their nodes do."""

    a: Graph
    b: Graph
    nodes: NodePairs

    @property
    def label(self) -> str:
        """The label of both graphs, once where it is the same."""
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
        """Return those nodes of the first graph that the second computes by another operator or from other nodes."""
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
    called = {
        (nodes.graph, nodes.direction): {n.name: n.called for n in nodes.nodes if n.called}
        for nodes in (decode(GraphNodes, body.get("nodes")) for body in recording.events("nodes"))
    }
    groups: dict[GraphId, list[Graph]] = {}
    for record in recording.graphs():
        names = called.get((record.id, record.direction), {})
        groups.setdefault(record.id, []).append(Graph(record=record, fx=read_graph(recording, record), called=names))
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
    """Return the pairs, in the order of both sides, whose likeness is largest in sum."""
    left, right = [_Features(group) for group in mine], [_Features(group) for group in other]
    if len(mine) * len(other) > _MOST_SCORES:  # Then those that stand in the same place, or none.
        sides = zip(zip(mine, left, strict=True), zip(other, right, strict=True), strict=False)
        return [(x, y) for (x, a), (y, b) in sides if a.likeness(b) >= _RELATED]
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
        self._code = Counter(n.code for n in computed)

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
