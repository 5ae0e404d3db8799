"""What differs between two compiled programs beside values: operators, kernels and memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from torchsan.diff.align import Graph, GraphPair
from torchsan.diff.result import KernelDiff, MemoryDiff, OperatorDiff
from torchsan.graphs.printed import FxNode
from torchsan.recording import Reader
from torchsan.records import KernelRecord, SourceLine

_LINES = 4
_FIGURES = {
    "peak": "peak",
    "allocated": "allocated",
    "saved": "saved for backward",
    "given": "given",
    "returned": "returned",
}


def operator_diffs(pair: GraphPair) -> Iterator[OperatorDiff]:
    """Yield, by line of the program, the nodes that only one graph has or that the two compute differently."""
    if not (pair.a.fx.complete and pair.b.fx.complete):
        return
    changed = set(pair.rewritten(n.name for n in pair.a.fx.nodes if n.expression is not None))
    # A node whose parents alone were exchanged for those of another part is not a difference of its own.
    changed = {n for n in changed if n not in pair.nodes.pairs or not _written_alike(pair, n)}
    same = {pair.nodes.pairs[n] for n in pair.nodes.pairs if n not in changed}
    mine = _by_line(n for n in pair.a.fx.nodes if n.name in changed)
    other = _by_line(n for n in pair.b.fx.nodes if n.expression is not None and n.name not in same)
    for line in dict.fromkeys((*mine, *other)):
        nodes = (*mine.get(line, ()), *other.get(line, ()))
        source = next((n.source for n in nodes if n.source is not None), None)
        yield OperatorDiff(
            graph=pair.label,
            a=tuple(n.text for n in mine.get(line, ())),
            b=tuple(n.text for n in other.get(line, ())),
            source=() if source is None else (source,),
        )


def _written_alike(pair: GraphPair, name: str) -> bool:
    return pair.a.fx.by_name[name].written == pair.b.fx.by_name[pair.nodes.pairs[name]].written


def _by_line(nodes: Iterator[FxNode]) -> dict[str, list[FxNode]]:
    found: dict[str, list[FxNode]] = defaultdict(list)
    for node in nodes:
        found[node.code].append(node)
    return dict(found)


_Kernel = tuple[int, int, str, frozenset[str]]
"""Of which side, its place there, its name and what it computes."""


def kernel_diffs(pair: GraphPair) -> Iterator[KernelDiff]:
    """Yield the kernels of either program that compute the same nodes in another distribution."""
    for group in _connected(pair):
        mine, other = ([(name, nodes) for s, _, name, nodes in group if s == side] for side in (0, 1))
        left, right = Counter(nodes for _, nodes in mine), Counter(nodes for _, nodes in other)
        if left != right:
            a = tuple(name for name, nodes in mine if nodes in left - right)
            b = tuple(name for name, nodes in other if nodes in right - left)
            yield KernelDiff(graph=pair.label, a=a, b=b)


def _connected(pair: GraphPair) -> list[list[_Kernel]]:
    """The kernels of both programs, in groups that have no node in common."""
    group_of: dict[str, list[_Kernel]] = {}
    for side, graph in enumerate((pair.a, pair.b)):
        for nth, kernel in enumerate(graph.record.kernels):
            nodes = _nodes(pair, side, kernel)
            touched = {id(group): group for n in nodes if (group := group_of.get(n)) is not None}
            *smaller, group = sorted(touched.values(), key=len) or [[]]
            moved = [(side, nth, kernel.name, nodes), *(k for other in smaller for k in other)]
            group += moved
            for *_, members in moved:
                group_of |= dict.fromkeys(members, group)
    return sorted(sorted(group) for group in {id(group): group for group in group_of.values()}.values())


def _nodes(pair: GraphPair, side: int, kernel: KernelRecord) -> frozenset[str]:
    """Return the nodes of a kernel by their names in the second graph; a node without a partner gets a unique name."""
    if not kernel.nodes:
        return frozenset([f"{kernel.kind} {kernel.name if kernel.kind != 'fused' else ''}"])
    if side == 1:
        return frozenset(kernel.nodes)
    return frozenset(pair.partner(n) or f"A.{n}" for n in kernel.nodes)


def memory_diffs(a: Reader, b: Reader, pairs: Sequence[GraphPair]) -> Iterator[MemoryDiff]:
    """The figures of the memory check that differ, call by call."""
    mine, other = _figures(a), _figures(b)
    for pair in pairs:
        for (graph, direction, call), figures in mine.items():
            if (graph, direction) != (pair.a.record.id, pair.a.record.direction):
                continue
            theirs = other.get((pair.b.record.id, str(pair.b.record.direction), call))
            for key, what in _FIGURES.items() if theirs is not None else ():
                if theirs is not None and figures[key] != theirs[key]:
                    yield MemoryDiff(graph=pair.label, call=call, what=what, a=figures[key], b=theirs[key])


def _figures(recording: Reader) -> dict[tuple[int, str, int], dict[str, int]]:
    found = {}
    for event in recording.events("memory"):
        numbers = {key: event.get(key) for key in (*_FIGURES, "graph", "call")}
        if all(type(n) is int for n in numbers.values()):
            key = (event["graph"], str(event.get("direction")), event["call"])
            found[key] = {name: event[name] for name in _FIGURES}
    return found


def sources_of(graph: Graph, nodes: Sequence[str], kernel: str, site: int | None) -> tuple[SourceLine, ...]:
    """The lines of the program that nodes come from; where they are torch's own or not known, those of the kernel."""
    known = graph.fx.by_name
    found = dict.fromkeys(s for n in nodes if n in known and (s := known[n].source) is not None)
    of_kernel = next((k.source for k in graph.record.kernels if k.nth == site and k.name == kernel), ())
    if of_kernel and all("/torch/" in s.file or "/torchsan/ops/" in s.file for s in found):
        return of_kernel
    return tuple(found)[:_LINES]
