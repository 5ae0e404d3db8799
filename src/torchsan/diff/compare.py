"""Compares two recordings: pairs their graphs and values, judges the values, and lists what else differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from torchsan.diff.align import Graph, GraphPair, Pairing, pair_graphs
from torchsan.diff.judging import Judging, Result
from torchsan.diff.result import (
    Circumstance,
    Diff,
    Judged,
    KernelDiff,
    MemoryDiff,
    MetadataDiff,
    OperatorDiff,
    Role,
    Run,
    Status,
    ValueDiff,
)
from torchsan.diff.values import Call, Contents, SeenValues, Value, pair_values, seen_in
from torchsan.errors import UsageError
from torchsan.graphs.printed import FxNode
from torchsan.recording import Reader
from torchsan.records import KernelRecord, Skipped, SourceLine, encode
from torchsan.records.program import signal_name
from torchsan.report.findings import shown_place

SECONDS = 120.0
"""How long to replay, unless asked for otherwise."""

Progress = Callable[[int, int], None]

_LINES = 4
_FIGURES = {
    "peak": "peak",
    "allocated": "allocated",
    "saved": "saved for backward",
    "given": "given",
    "returned": "returned",
}


def compare_recordings(a: Reader, b: Reader, *, seconds: float = SECONDS, progress: Progress | None = None) -> Diff:
    """Compare two recordings of one program. Raise UsageError if they have nothing in common."""
    pairing = pair_graphs(a, b)
    mine, other = seen_in(a), seen_in(b)
    calls, uneven = pair_values(pairing.pairs, mine, other)
    if not pairing.pairs and not calls and a.graphs() and b.graphs():
        raise _strangers(a, b)
    gaps = [*_gaps(a, "A"), *_gaps(b, "B"), *_one_sided(pairing), *uneven]
    with closing(Contents(a)) as x, closing(Contents(b)) as y:
        tally = _Tally(Judging(x, y, seconds=seconds))
        for n, call in enumerate(calls):
            if progress is not None:
                progress(n, len(calls))
            tally.add(call)
        tally.close(seconds)
        gaps += [
            f"{len(side.damaged)} tensors of {name} cannot be read: {next(iter(side.damaged.values()))}"
            for name, side in (("A", x), ("B", y))
            if side.damaged
        ]
    if not tally.judged.total():
        gaps += _nothing({"A": (a, mine), "B": (b, other)})
    elif not tally.computed:
        gaps.append(
            "nothing but inputs could be compared: record both with --watch save, all kernels, and after launches"
        )
    return Diff(
        a=_run(a),
        b=_run(b),
        status=_status(tally.judged, gaps),
        reasons=tuple(gaps),
        first=next((v for v in tally.values if v.judged is Judged.DIFFERENT), None),
        compared={str(j): tally.judged[j] for j in Judged},
        how={str(how): n for how, n in sorted(tally.how.items())},
        values=tuple(tally.values),
        metadata=tuple(tally.metadata),
        operators=tuple(o for pair in pairing.pairs for o in _operator_diffs(pair)),
        kernels=tuple(k for pair in pairing.pairs for k in _kernel_diffs(pair)),
        memory=tuple(_memory_diffs(a, b, pairing.pairs)),
        circumstances=tuple(_circumstances(a, b)),
        graphs=tuple((pair.a.record.label, pair.b.record.label) for pair in pairing.pairs),
        not_compared=tuple(tally.skipped),
    )


def _run(recording: Reader) -> Run:
    manifest, coverage = recording.manifest, recording.coverage()
    return Run(
        path=shown_place(recording),
        torch=manifest.torch,
        command=manifest.command,
        started=manifest.started,
        graphs=coverage.graphs,
        kernels=coverage.kernels,
        findings=len(recording.findings()),
    )


class _Tally:
    """What came of the pairs so far."""

    def __init__(self, judging: Judging) -> None:
        self._judging = judging
        self._alone = [0, 0]
        self.judged: Counter[Judged] = Counter()
        self.how: Counter[str] = Counter()
        self.values: list[ValueDiff] = []
        self.metadata: list[MetadataDiff] = []
        self.skipped: list[Skipped] = []
        self.computed = 0
        """How many of the compared values are not just inputs."""

    def add(self, call: Call) -> None:
        self._alone = [n + more for n, more in zip(self._alone, call.alone, strict=True)]
        for a, b, result in self._judging.judge(call):
            self.metadata += _layouts(a, b)
            if result.judged is None:
                self._skip(a.shown, result.text[0] if result.text else "")
                continue
            self.judged[result.judged] += 1
            self.computed += a.role is not Role.INPUT
            self.how[str(result.how)] += 1
            if result.judged is not Judged.SAME:
                self.values.append(_value_diff(call, a, b, result))

    def close(self, seconds: float) -> None:
        """Say what could not be compared, or not as well, for reasons that are not those of one value."""
        late = self._judging.out_of_time
        if late:
            reason = f"the {seconds:g} s for replays were over: judged by proportion; more with --time-limit"
            self._skip(f"{late} values", reason)
        for name, n in zip("AB", self._alone, strict=True):
            if n:
                self._skip(f"{n} values of {name}", "the other run has no values that correspond to them")

    def _skip(self, what: str, reason: str) -> None:
        self.skipped.append(Skipped(what=what, reason=reason))


def _value_diff(call: Call, a: Value, b: Value, result: Result) -> ValueDiff:
    source: tuple[SourceLine, ...] = ()
    if call.graphs is not None:
        source = _sources_of(call.graphs.a, result.blamed or (a.node or "",), a.watched.kernel, a.watched.site)
    assert result.judged is not None
    return ValueDiff(
        role=a.role,
        name=a.shown,
        a=a.place,
        b=b.place,
        judged=result.judged,
        how=result.how,
        comparison=result.comparison,
        spread=result.spread,
        source=source,
        text=result.text,
    )


def _layouts(a: Value, b: Value) -> Iterator[MetadataDiff]:
    """Yield what differs in dtype, shape, stride and device."""
    mine, other = a.watched.summary, b.watched.summary
    if mine is None or other is None or a.role is Role.PROBE:
        return
    for what in ("dtype", "shape", "stride", "device"):
        x, y = getattr(mine.meta, what), getattr(other.meta, what)
        if x != y:
            yield MetadataDiff(name=a.shown, graph=a.place.graph, call=a.watched.call, what=what, a=str(x), b=str(y))
            if what in ("dtype", "shape"):
                return


def _strangers(a: Reader, b: Reader) -> UsageError:
    return UsageError(
        f"{shown_place(a)} and {shown_place(b)} do not belong together: no graph of one is like a graph of the "
        f"other (A ran {_command(a)}, B ran {_command(b)}); name two recordings of one program",
        slug="unrelated-recordings",
    )


def _command(recording: Reader) -> str:
    return " ".join(recording.manifest.command)[:80] or "a session"


def _one_sided(pairing: Pairing) -> Iterator[str]:
    # A run that compiled nothing is compared at its probes: then it is no gap that the other one compiled.
    if not pairing.pairs:
        return
    for name, graphs in (("A", pairing.only_a), ("B", pairing.only_b)):
        if graphs:
            more = ", …" if len(graphs) > 4 else ""
            yield f"only {name} has graph {', '.join(g.record.label for g in graphs[:4])}{more}"


def _gaps(recording: Reader, name: str) -> Iterator[str]:
    program = recording.program
    if recording.degraded is not None:
        yield f"the recording of {name} has gaps: {recording.degraded}"
    if program.signal is not None:
        yield f"the program of {name} died of {signal_name(program.signal)}"
    elif program.exit:
        yield f"the program of {name} failed with exit status {program.exit}"
    elif not recording.closed:
        yield f"the recording of {name} ends before its program did, or is still being written"


def _nothing(sides: Mapping[str, tuple[Reader, SeenValues]]) -> Iterator[str]:
    """Why no two values were compared."""
    silent = {name: recording for name, (recording, seen) in sides.items() if not seen.calls and not seen.probes}
    for name, recording in silent.items():
        eager = "" if recording.graphs() else "; it compiled nothing, and eager code is watched at torchsan.probe only"
        yield f"no values were recorded in {name}: record it with --watch save{eager}"
    if not silent:
        yield "no value of one stands for a value of the other: record both with --watch save and without --when before"


def _status(judged: Counter[Judged], gaps: list[str]) -> Status:
    if judged[Judged.DIFFERENT]:
        return Status.DIFFERENT
    if gaps:
        return Status.INCOMPLETE
    return Status.SAME if judged.total() == judged[Judged.SAME] else Status.ROUNDING


_OBSERVING = ("check", "watch", "kernels", "when", "calls", "budget", "max_bytes", "max_memory", "no_guards")
"""The options that decide what a recording holds; where it is told, and what is passed over, makes no difference."""


def _as_typed(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _circumstances(a: Reader, b: Reader) -> Iterator[Circumstance]:
    mine, other = a.manifest, b.manifest
    for what in ("torch", "torchsan", "python", "platform"):
        yield from _differing(what, getattr(mine, what), getattr(other, what))
    yield from _differing("command", " ".join(mine.command), " ".join(other.command))
    yield from _differing("seed", *("not known" if r.seed is None else str(r.seed) for r in (a, b)))
    for name in sorted({*mine.environment, *other.environment}):
        yield from _differing(name, mine.environment.get(name, "not set"), other.environment.get(name, "not set"))
    options = encode(mine.options), encode(other.options)
    for name in _OBSERVING:
        yield from _differing(f"--{name.replace('_', '-')}", *(_as_typed(o[name]) for o in options))
    yield from _differing("findings", str(len(a.findings())), str(len(b.findings())))


def _differing(what: str, a: str, b: str) -> Iterator[Circumstance]:
    if a != b:
        yield Circumstance(what=what, a=a, b=b)


def _operator_diffs(pair: GraphPair) -> Iterator[OperatorDiff]:
    """Yield, by line of the program, the nodes that only one graph has or that the two compute differently."""
    if not (pair.a.fx.complete and pair.b.fx.complete):
        return
    rewritten = pair.rewritten(n.name for n in pair.a.fx.nodes if n.expression is not None)
    # A node whose parents alone were exchanged for those of another part is not a difference of its own.
    changed = {n for n in rewritten if not _written_alike(pair, n)}
    same = {other for n, other in pair.nodes.pairs.items() if n not in changed}
    mine = _by_line(n for n in pair.a.fx.nodes if n.name in changed)
    other = _by_line(n for n in pair.b.fx.nodes if n.expression is not None and n.name not in same)
    for line in dict.fromkeys((*mine, *other)):
        a, b = mine.get(line, []), other.get(line, [])
        sources = [n.source for n in (*a, *b) if n.source is not None]
        texts = [tuple(map(side.text, nodes)) for side, nodes in ((pair.a, a), (pair.b, b))]
        yield OperatorDiff(graph=pair.label, a=texts[0], b=texts[1], source=tuple(sources[:1]))


def _written_alike(pair: GraphPair, name: str) -> bool:
    other = pair.nodes.pairs.get(name)
    return other is not None and pair.a.fx.by_name[name].written == pair.b.fx.by_name[other].written


def _by_line(nodes: Iterator[FxNode]) -> dict[str, list[FxNode]]:
    found: dict[str, list[FxNode]] = defaultdict(list)
    for node in nodes:
        found[node.code].append(node)
    return dict(found)


_Kernel = tuple[int, int, str, frozenset[str]]
"""Of which side, its place there, its name and what it computes."""


def _kernel_diffs(pair: GraphPair) -> Iterator[KernelDiff]:
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
            nodes = _nodes_of(pair, side, kernel)
            touched = {id(group): group for n in nodes if (group := group_of.get(n)) is not None}
            *smaller, group = sorted(touched.values(), key=len) or [[]]
            moved = [(side, nth, kernel.name, nodes), *(k for other in smaller for k in other)]
            group += moved
            for *_, members in moved:
                group_of |= dict.fromkeys(members, group)
    return sorted(sorted(group) for group in {id(group): group for group in group_of.values()}.values())


def _nodes_of(pair: GraphPair, side: int, kernel: KernelRecord) -> frozenset[str]:
    """Return the nodes of a kernel by their names in the second graph; a node without a partner gets a unique name."""
    if not kernel.nodes:
        return frozenset([f"{kernel.kind} {kernel.name if kernel.kind != 'fused' else ''}"])
    if side == 1:
        return frozenset(kernel.nodes)
    return frozenset(pair.partner(n) or f"A.{n}" for n in kernel.nodes)


def _memory_diffs(a: Reader, b: Reader, pairs: Sequence[GraphPair]) -> Iterator[MemoryDiff]:
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
        if all(type(n) is int and 0 <= n < 2**63 for n in numbers.values()):
            key = (event["graph"], str(event.get("direction")), event["call"])
            found[key] = {name: event[name] for name in _FIGURES}
    return found


def _sources_of(graph: Graph, nodes: Sequence[str], kernel: str, site: int | None) -> tuple[SourceLine, ...]:
    """The lines of the program that nodes come from; where they are torch's own or not known, those of the kernel."""
    known = graph.fx.by_name
    found = dict.fromkeys(s for n in nodes if n in known and (s := known[n].source) is not None)
    of_kernel = next((k.source for k in graph.record.kernels if k.nth == site and k.name == kernel), ())
    if of_kernel and all("/torch/" in s.file or "/torchsan/ops/" in s.file for s in found):
        return of_kernel
    return tuple(found)[:_LINES]
