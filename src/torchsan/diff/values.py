"""The watched values of two recordings, in pairs: by graph, call, node and how often, or by the name of a probe."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchsan.diff.align import Graph, GraphPair
from torchsan.diff.result import Place, Role
from torchsan.errors import TorchsanError
from torchsan.recording import Reader
from torchsan.records import GraphRecord, TensorSummary, Watched, decode

if TYPE_CHECKING:
    import torch

    from torchsan.store import Store
    from torchsan.store.metadata import DenseRecord, TensorRecord


_SHARED, _TIMES = 1 << 30, 8
"""Bytes of elements that share memory, beyond so many times what is stored of them, that are looked at in all."""


class Contents:
    """The tensors that one recording keeps: those in its store, and those whose few elements are in its summaries."""

    def __init__(self, recording: Reader) -> None:
        self._recording = recording
        self._store: Store | None = None
        self._records: dict[str, TensorRecord | None] = {}
        self._left = _SHARED
        self.damaged: dict[str, str] = {}
        """Tensors that cannot be read, and why."""

    def address(self, watched: Watched) -> tuple[object, ...] | None:
        """Return a key that is equal for equal tensors; None if the tensor was not saved."""
        record = self._record(watched.stored) if watched.stored is not None else None
        if record is None:
            return None
        from torchsan.store.metadata import DenseRecord, SparseRecord

        match record:
            case DenseRecord():
                return _layout(record)
            case SparseRecord():
                return (record.coalesced, *(_layout(part) for part in record.parts.values()))

    def tensor(self, watched: Watched) -> torch.Tensor | None:
        """The elements, on the CPU; None if they are not in the recording or cannot be read."""
        if watched.stored is not None and watched.stored not in self.damaged and self._affordable(watched.stored):
            try:
                return self._open().get(watched.stored, device="cpu").detach()
            except TorchsanError as e:
                self.damaged[watched.stored] = str(e)
        return _few(watched.summary) if watched.summary is not None else None

    def _affordable(self, name: str) -> bool:
        """Whether the elements can be looked at: those that share memory can be more than there is time for."""
        record = self._record(name)
        if record is None:
            return False
        shared = record.nbytes - _TIMES * sum(blob.nbytes for blob in record.blobs)
        self._left -= max(0, shared)
        if self._left < 0 < shared:
            self.damaged[name] = f"{name!r:.100} has many more elements than are stored"
            return False
        return True

    def close(self) -> None:
        """Let go of the files."""
        if self._store is not None:
            self._store.close()

    def _record(self, name: str) -> TensorRecord | None:
        if name not in self._records:
            try:
                self._records[name] = self._open().record(name)
            except TorchsanError as e:
                self._records[name] = None
                self.damaged[name] = str(e)
        return self._records[name]

    def _open(self) -> Store:
        from torchsan.store import Store

        if self._store is None:
            self._store = Store(self._recording.store)
        return self._store


def _layout(r: DenseRecord) -> tuple[object, ...]:
    return (r.blob.digest, r.dtype, r.shape, r.stride, r.start, r.conj, r.neg)


def _few(summary: TensorSummary) -> torch.Tensor | None:
    """A tensor from the elements that its summary holds."""
    import torch

    dtype = getattr(torch, summary.meta.dtype, None)
    if summary.values is None or summary.reason is not None or not isinstance(dtype, torch.dtype):
        return None
    through = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
    try:
        shape = [n for n in summary.meta.shape if n is not None]
        return torch.tensor(summary.values, dtype=through).to(dtype).reshape(shape)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return None


Seen = tuple[int, Watched]
Key = tuple[str, object, int]
"""What a value is recognised by inside one call: its role, its name and how often it was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One watched value. `order` tells when it was seen among those of its recording."""

    watched: Watched
    order: int
    role: Role
    node: str | None = None
    op: str | None = None
    called: str | None = None
    """What the user calls an input."""

    @property
    def shown(self) -> str:
        """What the user calls it, the node that it is the value of, or the variable that it is in."""
        return self.called or self.node or self.watched.name

    @property
    def place(self) -> Place:
        """Where it is, for a report."""
        w = self.watched
        return Place(
            graph=None if w.graph is None else f"{w.graph} {w.direction}",
            call=w.call,
            launch=w.launch,
            kernel=w.kernel,
            variable=w.name,
            node=self.node,
            op=self.op,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a pair of graphs, or all probes (`graphs` is None): its values in pairs, first seen first.

    `known` are the values on either side by the name of the node in the first graph, whatever they are used for.
    """

    graphs: GraphPair | None
    pairs: tuple[tuple[Value, Value], ...]
    known: Mapping[str, tuple[Value, Value]]
    alone: tuple[int, int] = (0, 0)
    """How many values of either side have no partner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenValues:
    """The watched values of one recording that can be compared, each with its place among all."""

    calls: dict[tuple[int, str], dict[int, list[Seen]]]
    """By graph and direction, and by call."""
    probes: list[Seen]

    def of(self, graph: Graph) -> dict[int, list[Seen]]:
        """Those of one graph, by call."""
        return self.calls.get((graph.record.id, str(graph.record.direction)), {})


def seen_in(recording: Reader) -> SeenValues:
    """Return what was watched; nothing if nothing was."""
    seen = SeenValues(calls=defaultdict(lambda: defaultdict(list)), probes=[])
    for order, body in enumerate(recording.events("watched")):
        w = decode(Watched, body.get("watched"))
        if w.summary is None and w.value is None:
            continue
        if w.graph is None or w.direction is None:
            seen.probes.append((order, w))
        else:
            seen.calls[w.graph, str(w.direction)][w.call].append((order, w))
    return seen


def pair_values(pairs: Iterable[GraphPair], a: SeenValues, b: SeenValues) -> tuple[list[Call], list[str]]:
    """Return the calls whose values stand for each other, in the order of the first run, and which graphs have more."""
    calls, uneven = [], []
    for pair in pairs:
        mine, other = a.of(pair.a), b.of(pair.b)
        calls += [_pair_call(pair, mine[n], other[n]) for n in sorted(mine.keys() & other.keys())]
        if mine and other and len(mine) != len(other):
            uneven.append(f"graph {pair.label} was called {len(mine)} times in A and {len(other)} times in B")
    probes = _pair_probes(a.probes, b.probes)
    if probes.pairs:
        calls.append(probes)
    return sorted(calls, key=lambda c: c.pairs[0][0].order if c.pairs else 0), uneven


def _pair_probes(a: Iterable[Seen], b: Iterable[Seen]) -> Call:
    """Probes by their names, and how often they were passed."""
    mine, other = (
        {(w.name, w.call): Value(watched=w, order=order, role=Role.PROBE) for order, w in side} for side in (a, b)
    )
    pairs = tuple((value, other[key]) for key, value in mine.items() if key in other)
    return Call(graphs=None, pairs=pairs, known={}, alone=(len(mine) - len(pairs), len(other) - len(pairs)))


def _pair_call(graphs: GraphPair, a: Sequence[Seen], b: Sequence[Seen]) -> Call:
    """The values of one call of either graph in pairs."""
    alike = _kernels(graphs.a.record) == _kernels(graphs.b.record)
    mine = dict(_keyed(graphs.a, a, graphs.partner, alike))
    other = dict(_keyed(graphs.b, b, lambda name: name, alike))
    pairs = [(value, other[key]) for key, value in mine.items() if key in other]
    pairs.sort(key=lambda pair: _when(graphs.a, pair[0], a))
    known = {x.node: (x, y) for x, y in pairs if x.node is not None and x.role is not Role.INNER}
    return Call(graphs=graphs, pairs=tuple(pairs), known=known, alone=(len(mine) - len(pairs), len(other) - len(pairs)))


def _kernels(graph: GraphRecord) -> list[tuple[str, tuple[str, ...]]]:
    return [(k.name, k.writes) for k in graph.kernels]


def _keyed(
    graph: Graph, values: Sequence[Seen], partner: Callable[[str], str | None], alike: bool
) -> Iterator[tuple[Key, Value]]:
    """Yield the values to compare, each once, keyed by its name in the second recording."""
    seen: Counter[tuple[str, object]] = Counter()
    covered: set[str] = set()
    for order, w in values:
        role, name, node = _role(graph, w)
        if role is None or (role is Role.OUTPUT and node is not None and node in covered):
            continue
        if node is not None:
            covered.add(node)
            known = partner(node)
            if known is None:
                continue
            name = known
        elif role is Role.INNER and not alike:
            continue
        side = str(Role.NODE if role is Role.OUTPUT and node is not None else role)
        nth = seen[side, name]
        seen[side, name] += 1
        fx = graph.fx.by_name.get(node) if node is not None else None
        op, called = fx.op if fx else None, graph.called.get(node) if node is not None else None
        yield (side, name, nth), Value(watched=w, order=order, role=role, node=node, op=op, called=called)


def _role(graph: Graph, w: Watched) -> tuple[Role | None, object, str | None]:
    """What a value is to the program, what it is called, and the node it is the value of."""
    match w.kernel, w.phase:
        case "(inputs)", _:
            return Role.INPUT, w.name, w.name
        case "(outputs)", _:
            place = int(w.name[6:]) if w.name.startswith("output") and w.name[6:].isdecimal() else -1
            node = graph.fx.outputs[place] if 0 <= place < len(graph.fx.outputs) else None
            return Role.OUTPUT, w.name, node if node in graph.fx.by_name else None
        case _, "after" if w.node is not None:
            return Role.NODE, w.node, w.node
        case _, "after":
            return Role.INNER, (w.site, w.name), None
        case _:
            return None, "", None  # What a kernel reads was written before, and compared there.


def _when(graph: Graph, value: Value, values: Sequence[Seen]) -> tuple[int, int, int]:
    """Return a sort key: the order of launches, and among the results of one launch that of the graph."""
    w = value.watched
    if value.role is Role.INPUT:
        return (-1, 0, value.order)
    last = len(graph.fx.nodes)
    launch = w.launch if w.launch is not None else len(values)
    return (launch, graph.fx.position.get(value.node or "", last), value.order)
