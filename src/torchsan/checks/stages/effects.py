"""What a graph reads and writes, in order: for each read, which version of which memory it sees."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.plan import written_arguments
from torchsan.checks.stages.storages import Place, Read, Region, Storage, Value, geometry, overwritten, region_of
from torchsan.torch_internals.operators import functionalized, has_storage, is_composite, is_higher_order, storage_key

_COPIES = frozenset(("clone", "copy", "lift_fresh_copy", "alias", "detach", "lift_fresh", "alias_copy"))
"""Operators whose result is their argument, be it in new memory: for `copy` the second one."""
_REPLACES = frozenset(("copy_", "fill_", "zero_"))
"""Operators that write an argument and do not read it."""
_SCATTERS = frozenset(("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"))
_CALLER = "the caller"


Places = Place | list["Places | None"]


class Effects:
    """The reads and writes of one graph. `reads` are those of each node, by its name, in the order of its arguments.

    `left` are the inputs as the caller finds them afterwards, by name.
    """

    def __init__(self, graph: torch.fx.Graph, *, by_position: bool = False) -> None:
        """`by_position` calls inputs by their position and computed values by nothing, for a graph of other names."""
        self.reads: dict[str, list[Read]] = {}
        self.overlapping: dict[str, torch.fx.Node] = {}
        """The nodes, by name, that read other elements of what they overwrite, in whatever order."""
        self.writes: list[tuple[torch.fx.Node, Storage]] = []
        self._by_position = by_position
        self._places: dict[torch.fx.Node, Places] = {}
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        self._positions = {n: i for i, n in enumerate(inputs)}
        self._shared: dict[int, Place] = {}
        for node in graph.nodes:
            self._visit(node)
        self.left = {self._named(n) or n.name: self._read(n, n) for n in inputs if n in self._places}

    def place(self, node: torch.fx.Node) -> Place | None:
        """Where the value of a node lies, if it is one tensor."""
        found = self._places.get(node)
        return found if isinstance(found, Place) else None

    def _visit(self, node: torch.fx.Node) -> None:
        if node.op == "placeholder":
            self._given(node)
        elif node.op == "get_attr":
            self._places[node] = self._fresh(node, Value("constant", str(node.target)))
        elif node.op == "output":
            self.reads[node.name] = [self._read(node, a) for a in _tensors(node.args) if a in self._places]
        elif node.target is operator.getitem and isinstance(found := self._places.get(_first(node)), list):
            index = node.args[1]
            if isinstance(index, int) and index < len(found) and (item := found[index]) is not None:
                self._places[node] = item
        else:
            self._call(node)

    def _given(self, node: torch.fx.Node) -> None:
        """Inputs that share memory do so here: the compiler was told."""
        tensor = fake(node)
        if tensor is None:
            return
        place = self._fresh(node, Value("input", self._named(node)))
        self._places[node] = place
        first = self._shared.setdefault(storage_key(tensor), place) if has_storage(tensor) else place
        if first is not place:
            for one in (first, place):
                first.storage.named.setdefault(one.region, one.storage.base)
            self._places[node] = Place(first.storage, place.region)

    def _named(self, node: torch.fx.Node) -> str | None:
        if not self._by_position:
            return node.name
        return f"input {self._positions[node]}" if node in self._positions else None

    def _fresh(self, node: torch.fx.Node, value: Value, tensor: torch.Tensor | None = None) -> Place:
        known = fake(node) if tensor is None else tensor
        made = node if node.op != "placeholder" else None
        name = node.name if made is not None else self._named(node) if self._by_position else f"input {node.name}"
        storage = Storage(name=str(name), base=value, made=made)
        storage.whole = Place(storage, partial(_region, known, node.name))
        return storage.whole

    def _call(self, node: torch.fx.Node) -> None:
        call = Call.of(node)
        base = self._aliased(node, call)
        if base is not None and not call.written:
            self._places[node] = base
            return
        looked_at = call.tensors[1:] if call.name in _REPLACES and call.written else call.tensors
        reads = [self._read(node, a) for a in looked_at if a in self._places]
        self.reads[node.name] = reads
        for i, target in enumerate(call.written):
            self._write(node, call, target, self._computed(node, call, reads, i if len(call.written) > 1 else None))
        if base is not None:
            self._places[node] = base
        elif call.functionalizes is not None:
            self._places[node] = self._functionalized(node, call, reads)
        else:
            self._places[node] = self._results(node, call, reads)

    def _aliased(self, node: torch.fx.Node, call: Call) -> Place | None:
        """Where the result lies, if it is one of the arguments' memory."""
        source = call.returns
        if source is None and call.may_alias:
            # An operator such as `reshape` says nothing, and returns a view where it can.
            source = _same_storage(node, call.tensors)
        place = self._places.get(source) if source is not None else None
        if not isinstance(place, Place):
            return None
        if source in call.written:
            return place
        return Place(place.storage, partial(_viewed, place, fake(node), fake(source) if source is not None else None))

    def _write(self, node: torch.fx.Node, call: Call, target: torch.fx.Node, value: Value) -> None:
        place = self._places.get(target)
        if not isinstance(place, Place):
            return
        for other in call.tensors:
            found = self._places.get(other)
            if other is target or not isinstance(found, Place) or found.storage is not place.storage:
                continue
            if call.own and found.region != place.region and found.region.overlaps(place.region):
                self.overlapping[node.name] = other
        if call.name == "copy_" and self._onto_itself(call, place):
            return
        place.storage.write(node, place.region, value)
        self.writes.append((node, place.storage))

    def _onto_itself(self, call: Call, place: Place) -> bool:
        source = self._places.get(call.tensors[1]) if len(call.tensors) > 1 else None
        return isinstance(source, Place) and source.storage is place.storage and source.region == place.region

    def _computed(self, node: torch.fx.Node, call: Call, reads: list[Read], item: int | None) -> Value:
        """What a node computes, or the `item`-th of what it does."""
        if call.name in ("copy_", *_COPIES) and reads and item is None:
            return reads[-1].value if call.name in ("copy", "copy_") else reads[0].value
        if call.name in _SCATTERS and len(reads) > 1:
            part = _scattered(node, call.name)
            if part is not None:
                return overwritten(reads[0].value, part, reads[1].value, self._own_name(node))
        name = self._own_name(node)
        constants = tuple(a for a in node.args if isinstance(a, int | float | bool | str))
        return Value(call.base, name if item is None or name is None else f"{name}[{item}]", (*reads, *constants), item)

    def _own_name(self, node: torch.fx.Node) -> str | None:
        return None if self._by_position else node.name

    def _results(self, node: torch.fx.Node, call: Call, reads: list[Read]) -> Places:
        value = node.meta.get("val", node.meta.get("example_value"))
        if isinstance(value, list | tuple):
            computed = (self._computed(node, call, reads, i) for i in range(len(value)))
            return [
                self._fresh(node, v, t) if isinstance(t, torch.Tensor) else None
                for v, t in zip(computed, value, strict=True)
            ]
        return self._fresh(node, self._computed(node, call, reads, None))

    def _functionalized(self, node: torch.fx.Node, call: Call, reads: list[Read]) -> Places:
        """The results of an operator that was made functional: its own, then the new values of what it writes."""
        made = call.functionalizes
        assert made is not None
        found: list[Places | None] = [
            self._fresh(node, Value(made.base, f"{node.name}[{i}]", (), f"result {i}")) for i in range(made.results)
        ]
        for i, target in enumerate(made.mutated):
            item = i if len(made.mutated) > 1 else None
            value = Value(made.base, f"{node.name}[{made.results + i}]", tuple(reads), item)
            found.append(self._fresh(node, value, fake(target)) if isinstance(target, torch.fx.Node) else None)
        return found

    def _read(self, statement: torch.fx.Node, node: torch.fx.Node) -> Read:
        place = self._places[node]
        if isinstance(place, list):
            return Read(statement, Value("several", self._own_name(node)))
        return Read(statement, place)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Functionalized:
    """What stands in a graph for an operator that writes its arguments, made functional."""

    base: str
    results: int
    mutated: tuple[torch.fx.Node, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """What a node calls: `name` as in `add_`, `base` the same without what tells an in-place variant from the other."""

    name: str
    base: str
    own: bool
    """Whether it is an operator of PyTorch's own, that computes element by element or by index."""
    tensors: list[torch.fx.Node]
    written: tuple[torch.fx.Node, ...]
    returns: torch.fx.Node | None = None
    """The argument that its result is, or is a view of."""
    may_alias: bool = False
    """Whether its result may be an argument's memory, though nothing says so."""
    functionalizes: Functionalized | None = None

    @classmethod
    def of(cls, node: torch.fx.Node) -> Call:
        """Read it off the operator's schema; off the function's name in Dynamo's graph, which has no operators."""
        known = _operator(node.target)
        if known is None:
            return cls._without_schema(node)
        return cls(
            name=known.name,
            base=known.base,
            own=known.own,
            tensors=_tensors((node.args, node.kwargs)),
            written=tuple(written_arguments(node)) if known.mutable else (),
            returns=_argument(node, known.returns) if known.returns is not None else None,
            may_alias=known.may_alias,
        )

    @classmethod
    def _without_schema(cls, node: torch.fx.Node) -> Call:
        made = functionalized(node.target, node.args, node.kwargs)
        if made is not None:
            target, results, mutated = made
            name = str(target._schema.name)
            of = Functionalized(base=name, results=results, mutated=tuple(mutated))
            return cls(name=name, base=name, own=False, tensors=_tensors(node.kwargs), written=(), functionalizes=of)
        name = str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))
        tensors = _tensors((node.args, node.kwargs))
        copies = name in _COPIES
        return cls(
            name=name, base=_base(name), own=False, tensors=tensors, written=_written(node), may_alias=not copies
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What the schema of an operator says. `returns` is the position and name of the argument that it returns."""

    name: str
    base: str
    own: bool
    mutable: bool
    may_alias: bool
    returns: tuple[int, str] | None


@cache
def _operator(target: Any) -> Operator | None:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return None
    full = str(schema.name)
    own = full.startswith("aten::")
    name = full.removeprefix("aten::")
    return Operator(
        name=name,
        base=_base(name) if own else full,
        own=own,
        mutable=bool(schema.is_mutable),
        may_alias=name not in _COPIES and is_composite(target),
        returns=_returned(schema),
    )


def _argument(node: torch.fx.Node, argument: tuple[int, str]) -> torch.fx.Node | None:
    position, name = argument
    value = node.args[position] if position < len(node.args) else node.kwargs.get(name)
    return value if isinstance(value, torch.fx.Node) else None


def _region(tensor: torch.Tensor | None, name: str) -> Region:
    return geometry(tensor) if tensor is not None and has_storage(tensor) else Region(None, 0, 0, (name,))


def _viewed(place: Place, tensor: torch.Tensor | None, base: torch.Tensor | None) -> Region:
    """The region of a view of a place, from what the compiler knows of both."""
    if tensor is None or base is None or not has_storage(tensor):
        return place.region
    region = geometry(tensor)
    return place.region if region == geometry(base) else region


def mutates(graph: torch.fx.Graph) -> bool:
    """Whether any node of the graph writes anything. Most graphs are functional, and nothing can change places."""
    for node in graph.nodes:
        if not node.op.startswith("call_"):
            continue
        known = _operator(node.target)
        if known.mutable if known is not None else _written(node):
            return True
    return False


def _written(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """What a node of Dynamo's graph writes. A function that takes functions is taken to write nothing."""
    if node.op == "call_module" or node.target is operator.getitem or is_higher_order(node.target):
        return ()
    return tuple(written_arguments(node))


def fake(node: torch.fx.Node) -> torch.Tensor | None:
    """What the compiler knows of the tensor that a node gives."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return value if isinstance(value, torch.Tensor) else None


def _base(name: str) -> str:
    return name.rstrip("_") if not name.startswith("__") else name


def _returned(schema: Any) -> tuple[int, str] | None:
    """The argument that the schema says the only result shares memory with."""
    if len(schema.returns) != 1 or schema.returns[0].alias_info is None:
        return None
    names = schema.returns[0].alias_info.before_set
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set & names:
            return i, argument.name
    return None


def _same_storage(node: torch.fx.Node, tensors: Iterable[torch.fx.Node]) -> torch.fx.Node | None:
    tensor = fake(node)
    if tensor is None or not has_storage(tensor):
        return None
    key = storage_key(tensor)
    for other in tensors:
        base = fake(other)
        if base is not None and has_storage(base) and storage_key(base) == key:
            return other
    return None


def _scattered(node: torch.fx.Node, name: str) -> Region | None:
    """The region of its first argument that an operator such as `slice_scatter` replaces, where sizes are known."""
    tensor = fake(_first(node))
    if tensor is None:
        return None
    size, stride, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
    schema: Any = node.target
    names = [a.name for a in schema._schema.arguments]
    given = {a.name: a.default_value for a in schema._schema.arguments}
    given |= dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    numbers = [*size, *stride, offset, *(v for k, v in given.items() if k not in ("self", "src", "size", "stride"))]
    if not all(n is None or type(n) is int for n in numbers):
        return None
    if name == "as_strided_scatter":
        where = given["storage_offset"]
        return region_of(given["size"], given["stride"], offset if where is None else where, tensor.element_size())
    if name == "diagonal_scatter":
        a, b, shift = given["dim1"], given["dim2"], given["offset"]
        length = min(size[a] + min(shift, 0), size[b] - max(shift, 0))
        offset += max(shift, 0) * stride[b] - min(shift, 0) * stride[a]
        kept = [i for i in range(len(size)) if i not in (a % len(size), b % len(size))]
        sizes = [*(size[i] for i in kept), max(length, 0)]
        return region_of(sizes, [*(stride[i] for i in kept), stride[a] + stride[b]], offset, tensor.element_size())
    dim = given["dim"]
    if name == "select_scatter":
        offset += (given["index"] % size[dim]) * stride[dim]
        size[dim] = 1
    else:
        start, end, step = slice(given["start"], given["end"], given["step"]).indices(size[dim])
        offset += start * stride[dim]
        size[dim], stride[dim] = len(range(start, end, step)), stride[dim] * step
    return region_of(size, stride, offset, tensor.element_size())


def _tensors(tree: Any) -> list[torch.fx.Node]:
    """The nodes among arguments, each as often as it stands there."""
    found: list[torch.fx.Node] = []
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, torch.fx.Node):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found += _tensors(value)
    return found


def _first(node: torch.fx.Node) -> Any:
    return node.args[0] if node.args else None
