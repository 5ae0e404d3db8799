"""Between Dynamo's graph and AOTAutograd's: which writes reach a read in the program, and in the graph do not.

Dynamo's graph is run once more, operator by operator, with the memory that its tensors really have: an operator may
return its argument where its schema speaks of a new tensor, and inputs may overlap that did not when it was compiled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.effects import Effects
from torchsan.checks.stages.storages import Comparison, Place, Read, Region, Reordered, Storage, Value, geometry
from torchsan.torch_internals.dispatch import TorchDispatchMode
from torchsan.torch_internals.operators import has_storage, storage_key, tensors_in

_COPIES = ("clone", "copy_", "lift_fresh", "detach", "alias")


class _Moment:
    """The node of Dynamo's graph that runs: known when it has run."""

    node: torch.fx.Node | None = None


class TracedEffects(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate its modes
    """Records what a run of Dynamo's graph reads and writes. Tell it of the inputs, and of each node that has run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate its modes
        self.reads: list[Read] = []
        self.left: dict[str, Read] = {}
        self.overlapping_inputs = False
        self._storages: dict[int, Storage] = {}
        self._held: list[torch.Tensor] = []
        """Keeps what was seen alive, so that no address is used twice."""
        self._moment = _Moment()

    def run(self, function: Callable[[list[Any]], Any], args: list[Any]) -> Any:
        """Run the function on the arguments and record it."""
        given: dict[str, tuple[Storage, Region]] = {}
        for i, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and has_storage(arg):
                value = Value("input", f"input {i}")
                key = storage_key(arg)
                self.overlapping_inputs |= key in self._storages
                whole = geometry(arg)
                storage = self._storages.setdefault(key, _storage(f"input {i}", value, whole))
                storage.named.setdefault(whole, value)
                given[f"input {i}"] = storage, whole
                self._held.append(arg)
        with self:
            result = function(args)
        caller = _Moment()
        self.left = {name: Read(caller, Place(storage, region)) for name, (storage, region) in given.items()}
        return result

    def ran(self, node: torch.fx.Node, _value: Any) -> None:
        """The operators since the last node are those of this one."""
        self._moment.node = node
        self._moment = _Moment()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        name = schema.name.removeprefix("aten::")
        tensors = [t for t in tensors_in((*args, *kwargs.values())) if has_storage(t)]
        is_view = not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)
        reads = [] if is_view else [self._read(t) for t in (tensors[1:] if name == "copy_" else tensors)]
        self.reads += reads
        result = func(*args, **kwargs)
        value = reads[-1].value if name in _COPIES and reads else Value(name.rstrip("_"), None, tuple(reads))
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                target = args[i] if i < len(args) else kwargs.get(argument.name)
                for tensor in tensors_in(target):
                    self._storage(tensor).write(self._moment, geometry(tensor), value)
        for tensor in tensors_in(result):
            if has_storage(tensor) and storage_key(tensor) not in self._storages:
                self._storages[storage_key(tensor)] = _storage(name, value, geometry(tensor), self._moment)
                self._held.append(tensor)
        return result

    def _storage(self, tensor: torch.Tensor) -> Storage:
        key = storage_key(tensor)
        if key not in self._storages:
            self._storages[key] = Storage(name="a constant", base=Value("constant"))
            self._held.append(tensor)
        return self._storages[key]

    def _read(self, tensor: torch.Tensor) -> Read:
        return Read(self._moment, Place(self._storage(tensor), geometry(tensor)))


def _storage(name: str, value: Value, whole: Region, made: Any = None) -> Storage:
    storage = Storage(name=name, base=value, made=made)
    storage.whole = Place(storage, whole)
    return storage


def lost_writes(
    traced: TracedEffects, graph: torch.fx.Graph, names: Mapping[str, str], differing: Iterable[str]
) -> Iterator[Reordered]:
    """The reads of AOTAutograd's graph that see another version of an input than the same lines of the program did.

    And the writes that the caller no longer sees. `names` are those of the inputs by position, as `input 0`;
    `differing` the positions of those that are wrong afterwards.
    """
    effects = Effects(graph, by_position=True)
    nodes = {n.name: n for n in graph.nodes}
    lines: dict[str, list[Read]] = defaultdict(list)
    for own in traced.reads:
        if own.statement.node is not None:
            lines[_line(own.statement.node)].append(own)
    comparison = Comparison()
    for name, reads in effects.reads.items():
        program = lines.get(_line(nodes[name]), [])
        for seen in reads:
            if seen.value.what != "input" or any(comparison.values(own.value, seen.value) is True for own in program):
                continue
            for own in program:
                found = comparison.reads(own, seen) if own.written else None
                if isinstance(found, Reordered):
                    yield _named(found, names, nodes[name])
    for position in differing:
        own_left = traced.left.get(position)
        if own_left is None or own_left.storage is None or not own_left.storage.writes:
            continue
        write = own_left.storage.writes[-1].statement.node
        if write is not None and not any(s.name == position for _, s in effects.writes):
            yield Reordered(original=write, statement=None, write=write, storage=names[position], late=False)


def _named(found: Reordered, names: Mapping[str, str], node: torch.fx.Node) -> Reordered:
    return Reordered(
        original=found.original.node if isinstance(found.original, _Moment) else found.original,
        statement=node,
        write=found.write.node if isinstance(found.write, _Moment) else found.write,
        storage=names.get(found.storage, found.storage),
        late=found.late,
    )


def _line(node: torch.fx.Node) -> str:
    return str(node.meta.get("stack_trace") or node.name)
