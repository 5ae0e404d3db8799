"""Runs a part of an FX graph again, from given values: eagerly, in float64, or with random last bits."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import torch
import torch.fx

from torchsan.reference import random as philox
from torchsan.reference.nudge import Nudger
from torchsan.torch_internals.fakes import symbol_value
from torchsan.torch_internals.operators import draws_random_numbers, is_higher_order
from torchsan.watch.observer import CompiledProgram


class Arithmetic(StrEnum):
    """How a replay computes."""

    EAGER = "eager"
    """In the program's own dtypes."""
    EXACT = "exact"
    """In float64 and complex128."""
    NUDGED = "nudged"
    """In the program's own dtypes, with random last bits."""


class Unavailable(Exception):
    """A value that the replay needs is not to be had; the message says which and why."""


_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_METADATA_ONLY = frozenset(
    """empty_like full_like zeros_like ones_like new_empty new_empty_strided new_full new_zeros new_ones
    rand_like randn_like randint_like sym_size sym_stride sym_numel sym_storage_offset""".split()
)
# Operators that look at the bits of a number mean something else in float64.
_BITS = frozenset(["view.dtype", "nextafter.default", "frexp.Tensor"])


class Replayer:
    """Replays parts of one function's graph from the values that are known at one launch."""

    def __init__(
        self,
        program: CompiledProgram,
        function: str,
        known: Mapping[torch.fx.Node, Any],
        symbols: Mapping[Any, Any],
        effects: tuple[torch.fx.Node, ...] = (),
    ) -> None:
        self._program = program
        self._function = function
        self._known = known
        self._symbols = symbols
        self._effects = effects

    def run(self, node: torch.fx.Node, arithmetic: Arithmetic, *, seed: int = 0) -> Any:
        """Return the node's value. Raise Unavailable if it depends on something that is not known."""
        return replay(
            [node],
            self._known,
            arithmetic,
            attributes=self.attribute,
            symbol=self.number,
            effects=self._effects,
            seed=seed,
        )[node]

    def instead(self, known: Mapping[torch.fx.Node, Any]) -> Replayer:
        """The same with other values for some of the known nodes."""
        return Replayer(self._program, self._function, {**self._known, **known}, self._symbols, self._effects)

    @property
    def known(self) -> Mapping[torch.fx.Node, Any]:
        """The values that it starts from."""
        return self._known

    @property
    def effects(self) -> tuple[torch.fx.Node, ...]:
        """The nodes that overwrite known values."""
        return self._effects

    def number(self, value: Any) -> Any:
        """The value of a symbolic number in this call; None if it depends on data."""
        return symbol_value(value, self._symbols)

    def attribute(self, name: str) -> Any:
        """A constant of the graph."""
        return self._program.attribute(self._function, name)


def replay(
    targets: Iterable[torch.fx.Node],
    known: Mapping[torch.fx.Node, Any],
    arithmetic: Arithmetic,
    *,
    attributes: Callable[[str], Any],
    symbol: Callable[[Any], Any],
    effects: tuple[torch.fx.Node, ...] = (),
    seed: int = 0,
) -> dict[torch.fx.Node, Any]:
    """Return the values of the `targets`, computed from those of the `known` nodes.

    `effects` are nodes that overwrite known values: they run where they stand in the graph, on copies. `attributes`
    gives the graph's constants, `symbol` the value of a symbolic size. Raise Unavailable if a target depends on
    something that is not known, or is random. Known tensors are not changed.
    """
    targets = tuple(targets)
    order = needed((*targets, *effects), known)
    overwrites = any(is_mutable(node) for node in order)
    engine = _Engine(known, arithmetic, attributes, symbol, seed, copies=overwrites)
    uses: dict[torch.fx.Node, int] = dict.fromkeys(targets, 1)
    for node in order:
        for parent in node.all_input_nodes:
            uses[parent] = uses.get(parent, 0) + 1
    for node in order:
        engine.values[node] = engine.run(node)
        for parent in set(node.all_input_nodes):
            uses[parent] -= node.all_input_nodes.count(parent)
            if uses[parent] <= 0:
                engine.values.pop(parent, None)
    return {node: engine.values[node] if node in engine.values else engine.given(node) for node in targets}


def needed(targets: Iterable[torch.fx.Node], known: Mapping[torch.fx.Node, Any]) -> list[torch.fx.Node]:
    """The nodes to compute, parents first."""
    seen: set[torch.fx.Node] = set()
    stack = list(targets)
    while stack:
        node = stack.pop()
        if node in seen or node in known:
            continue
        seen.add(node)
        if _is_number(node):
            continue
        stack += node.all_input_nodes
    position = {node: i for i, node in enumerate(next(iter(seen)).graph.nodes)} if seen else {}
    return sorted(seen, key=position.__getitem__)


def is_mutable(node: torch.fx.Node) -> bool:
    """Whether a node overwrites one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


class _Engine:
    def __init__(
        self,
        known: Mapping[torch.fx.Node, Any],
        arithmetic: Arithmetic,
        attributes: Callable[[str], Any],
        symbol: Callable[[Any], Any],
        seed: int,
        *,
        copies: bool,
    ) -> None:
        self._copies = copies
        self.values: dict[torch.fx.Node, Any] = {}
        self._known = known
        self._arithmetic = arithmetic
        self._attributes = attributes
        self._symbol = symbol
        self._nudger = Nudger(seed) if arithmetic is Arithmetic.NUDGED else None

    def given(self, node: torch.fx.Node) -> Any:
        """A known value, as this arithmetic has it."""
        if node not in self._known:
            raise Unavailable(f"the value of {node.name} is not known here")
        if node not in self.values:
            value = self._known[node]
            # Kept, so that what overwrites it and what reads it afterwards see the same copy.
            self.values[node] = self._widened(_map(torch.clone, value) if self._copies else value)
        return self.values[node]

    def run(self, node: torch.fx.Node) -> Any:
        if _is_number(node):
            value = self._symbol(node.meta["val"])
            if value is not None:
                return value
        match node.op:
            case "get_attr":
                return self._widened(self._attributes(str(node.target)))
            case "call_function":
                return self._call(node)
            case "placeholder":
                raise Unavailable(f"the kernel does not read {node.name}, which its value depends on")
            case _:
                raise Unavailable(f"{node.op} {node.target} cannot be replayed")

    def _widened(self, value: Any) -> Any:
        if self._arithmetic is Arithmetic.EXACT:
            return _map(lambda t: t.to(_wide(t.dtype)), value)
        return value

    def _argument(self, node: torch.fx.Node, metadata_only: bool) -> Any:
        if node in self.values:
            return self.values[node]
        if node in self._known:
            return self.given(node)
        if metadata_only:
            return _stand_in(node, self._symbol)
        raise Unavailable(f"the value of {node.name} is not known here")

    def _call(self, node: torch.fx.Node) -> Any:
        target: Any = node.target
        name = getattr(target, "_opname", "") or str(target)
        metadata_only = name in _METADATA_ONLY
        args: Any = torch.fx.node.map_arg(node.args, lambda n: self._argument(n, metadata_only))
        kwargs: Any = torch.fx.node.map_arg(node.kwargs, lambda n: self._argument(n, metadata_only))
        if target is operator.getitem or not hasattr(target, "_schema"):
            if is_higher_order(target):
                raise Unavailable(f"{target} has subgraphs; they are checked on their own")
            return target(*args, **kwargs)
        if target.namespace == "torchsan" and name in ("probe", "realize"):
            return args[0].clone()  # Calling them would show the value to the user once more.
        if target.namespace == "prims" and name.startswith("inductor_"):
            return self._inductor_random(name, args)
        if draws_random_numbers(target, args, kwargs):
            raise Unavailable(f"{target} draws random numbers of its own")
        return self._dispatch(node, target, name, tuple(args), dict(kwargs))

    def _dispatch(
        self, node: torch.fx.Node, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._nudger is not None:
            return self._nudger.result(name, target, args, kwargs, target)
        if self._arithmetic is Arithmetic.EAGER:
            return target(*args, **kwargs)
        own_dtypes = target.namespace not in ("aten", "prims") or f"{name}.{target._overloadname}" in _BITS
        if not own_dtypes:
            try:
                return target(*_widen_dtypes(args), **_widen_dtypes(kwargs))
            except (RuntimeError, NotImplementedError, TypeError):
                pass  # Not implemented for float64: computed in the program's dtypes below.
        narrow = _narrowed(node, args, kwargs)
        return self._widened(target(*narrow[0], **narrow[1]))

    def _inductor_random(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "inductor_lookup_seed":
            return args[0][args[1]].clone()
        seed = args[-1] if name == "inductor_randint" else args[1] if len(args) > 1 else None
        if not isinstance(seed, torch.Tensor) or seed.device.type != "cpu" or name.startswith("inductor_seed"):
            raise Unavailable(f"the random numbers of prims.{name} cannot be drawn again")
        if name == "inductor_randint":
            return philox.randint(args[0], args[1], args[2], seed)
        if args[2] == "rand":
            return self._widened(philox.rand(args[0], seed))
        normal = philox.randn(args[0], seed)
        return self._nudger.last_bit(normal) if self._nudger is not None else self._widened(normal)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in _WIDE:
        return _WIDE[dtype]
    return torch.float64 if dtype.is_floating_point else dtype


def _widen_dtypes(value: Any) -> Any:
    """Ask for float64 wherever an operator is asked for a narrower type."""
    if isinstance(value, torch.dtype):
        return _wide(value)
    if isinstance(value, tuple | list):
        return type(value)(_widen_dtypes(v) for v in value)
    if isinstance(value, dict):
        return {k: _widen_dtypes(v) for k, v in value.items()}
    return value


def _narrowed(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments in the dtypes that the program gives this operator."""

    def narrow(symbolic: Any, value: Any) -> Any:
        if isinstance(symbolic, torch.fx.Node) and isinstance(value, torch.Tensor):
            meta = symbolic.meta.get("val")
            return value.to(meta.dtype) if isinstance(meta, torch.Tensor) else value
        if isinstance(symbolic, tuple | list):
            return type(value)(narrow(s, v) for s, v in zip(symbolic, value, strict=True))
        return value

    return (
        tuple(narrow(s, v) for s, v in zip(node.args, args, strict=True)),
        {k: narrow(node.kwargs[k], v) for k, v in kwargs.items()},
    )


def _stand_in(node: torch.fx.Node, symbol: Callable[[Any], Any]) -> torch.Tensor:
    """A tensor with the metadata of a node whose value does not matter."""
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor):
        raise Unavailable(f"the value of {node.name} is not known here")
    size = [s if isinstance(s, int) else symbol(s) for s in meta.shape]
    if any(s is None for s in size):
        raise Unavailable(f"the size of {node.name} is not known here")
    return torch.zeros((), dtype=meta.dtype, device=meta.device).expand(size)


def _map(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(_map(function, v) for v in value)
    if isinstance(value, dict):
        return {k: _map(function, v) for k, v in value.items()}
    return value
