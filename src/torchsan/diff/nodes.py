"""Which node of one graph stands for which node of the other: by what they compute, from both ends of the graph.

Names are not compared: a decomposition with one multiplication more renumbers all that follow.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchsan.diff.graphs import FxGraph, FxNode

__all__ = ["NodePairs", "pair_nodes"]


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
        """Inputs by their place; where one graph has more of them, by what is known of their values, in order.

        What the forward computed is paired as it was there, or not at all.
        """
        saved = forward.nodes if forward is not None else frozenset()
        for x in self._a.inputs:
            y = forward.pairs.get(x) if forward is not None else None
            if y is not None and y in self._b.inputs:
                self._pair(x, y)
        mine = tuple(n for n in self._a.inputs if n not in self.pairs and n not in saved)
        other = tuple(n for n in self._b.inputs if n not in self._taken and n not in saved)
        if len(mine) != len(other):
            mine, other = _in_order(
                mine, other, [self._a.by_name[n].kind for n in mine], [self._b.by_name[n].kind for n in other]
            )
        for x, y in zip(mine, other, strict=True):
            self._pair(x, y)

    def from_the_inputs(self) -> frozenset[str]:
        """Nodes that compute the same of the same."""
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
        """What is returned in the same place is meant to be the same, and so is what it is computed from."""
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
        """What is left: lines of the user's program that became the same operators; then runs of the same operators."""
        for with_code in (True, False):
            mine, other = (
                _blocks([n for n in graph.nodes if n.name not in done and n.expression is not None], with_code)
                for graph, done in ((self._a, self.pairs), (self._b, self._taken))
            )
            matcher = difflib.SequenceMatcher(None, [k for k, _ in mine], [k for k, _ in other], autojunk=False)
            for i, j, size in matcher.get_matching_blocks():
                for n in range(size):
                    for x, y in zip(mine[i + n][1], other[j + n][1], strict=True):
                        self._upwards(x.name, y.name)

    def _pair(self, x: str, y: str) -> bool:
        if x in self.pairs or y in self._taken:
            return False
        self.pairs[x] = y
        self._taken.add(y)
        return True


def _blocks(nodes: Sequence[FxNode], with_code: bool) -> list[tuple[tuple[object, ...], list[FxNode]]]:
    """Runs of nodes of one line of the program, each with what it is recognised by."""
    runs: list[list[FxNode]] = []
    for node in nodes:
        if runs and runs[-1][-1].source == node.source:
            runs[-1].append(node)
        else:
            runs.append([node])
    return [((_code(run[0]) if with_code else "", *((n.op, n.kind) for n in run)), run) for run in runs]


def _code(node: FxNode) -> str:
    return node.source.code if node.source is not None else ""


def _in_order(
    mine: Sequence[str], other: Sequence[str], left: Sequence[str], right: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    matches = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return _taken(mine, ((m.a, m.size) for m in matches)), _taken(other, ((m.b, m.size) for m in matches))


def _taken(names: Sequence[str], spans: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(name for start, size in spans for name in names[start : start + size])
