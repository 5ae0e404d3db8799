"""Runs a part of an FX graph again, from given values, in any arithmetic, and judges compiled results by it."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.graphs.nodes import computed_by
from torchsan.reference.arithmetic import Arguments, Arithmetic, Operators, Unavailable
from torchsan.reference.coherence import Change, Coherent, SharedAgain, find_coherent
from torchsan.reference.judge import Judgement, settle
from torchsan.reference.nudge import (
    ABSOLUTE_ERRORS,
    accumulation,
    adds_up,
    approximates,
    map_tensors,
    rounds,
    value_noise,
)
from torchsan.reference.packed import in_plain_operators, is_packed
from torchsan.reference.random import draw_as_kernels
from torchsan.reference.steady import ElementsAgain
from torchsan.torch_internals.fakes import symbol_value
from torchsan.torch_internals.fused import is_lowered, operators_of
from torchsan.torch_internals.operators import is_higher_order, is_pytorchs, is_users_kernel

_METADATA_ONLY = frozenset(
    """empty_like full_like zeros_like ones_like new_empty new_empty_strided new_full new_zeros new_ones
    rand_like randn_like randint_like sym_size sym_stride sym_numel sym_storage_offset""".split()
)


log = logging.getLogger(__name__)

_SAMPLES = 6
_FEW_SAMPLES = 4
_MOST_ELEMENTS = 1 << 20
"""Of all the values of a result's graph: what is larger is looked at as a whole only if it is suspect."""
_MOST_SUSPECT = 1 << 24
_UNUSUAL = 4.0


Again = SharedAgain | ElementsAgain


class Replayer:
    """Replays parts of one graph from the values of some of its nodes. Known tensors are not changed."""

    def __init__(
        self,
        known: Mapping[torch.fx.Node, Any],
        *,
        attribute: Callable[[str], Any],
        symbols: Mapping[Any, Any],
        effects: tuple[torch.fx.Node, ...] = (),
        triton: bool = False,
    ) -> None:
        """`attribute` gives the graph's constants, `symbols` the values of symbolic sizes.

        `effects` are nodes that overwrite known values: they run where they stand in the graph, on copies. `triton`
        tells that random numbers are drawn as Triton's kernels draw them, and not as those of C++ do.
        """
        self.known = known
        self.attribute = attribute
        self.effects = effects
        self.triton = triton
        self._symbols = symbols
        self._expected: set[torch.fx.Node] = set()
        self._found: dict[tuple[torch.fx.Node, Arithmetic, int], Any] = {}

    def expect(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Keep what a run computes of these on its way, and of no others: they are to be judged, the first one last."""
        self._expected = set(nodes)
        self._found.clear()

    def run(self, node: torch.fx.Node, arithmetic: Arithmetic, seed: int = 0, change: Change | None = None) -> Any:
        """Return the node's value. Raise Unavailable if it depends on something that is not known, or is random.

        With `change`, the run goes on with what that makes of each node's tensor.
        """
        if change is None and (node, arithmetic, seed) in self._found:
            return self._found[node, arithmetic, seed]
        return self.run_all((node,), arithmetic, seed, change)[0]

    def run_all(
        self, nodes: Sequence[torch.fx.Node], arithmetic: Arithmetic, seed: int = 0, change: Change | None = None
    ) -> list[Any]:
        """Return the values of several nodes, computed in one run. Raise Unavailable as `run` does."""
        order = needed((*nodes, *self.effects), self.known)
        values = _Values(self, arithmetic, seed, order, change)
        # What is overwritten further on is no longer what the node gave.
        kept = self._expected if change is None and not any(map(is_mutable, order)) else ()
        uses: dict[torch.fx.Node, int] = dict.fromkeys(nodes, 1)
        for each in order:
            for parent in each.all_input_nodes:
                uses[parent] = uses.get(parent, 0) + 1
        for each in order:
            values.compute(each)
            if each in kept:
                self._found[each, arithmetic, seed] = values.of(each)
            for parent in each.all_input_nodes:
                uses[parent] -= 1
                if uses[parent] <= 0:
                    values.forget(parent)
        return [values.of(node) for node in nodes]

    def judge(self, node: torch.fx.Node, actual: torch.Tensor, *, thorough: bool = False) -> Judgement:
        """Judge what a compiled program has for the node. Raise what `run` and `settle` do.

        `thorough` also looks for errors that all elements share and that hide below the rounding of each.
        """
        try:
            return settle(partial(self.run, node), actual, _Closer(self, node, thorough=thorough))
        finally:
            self._expected.discard(node)
            for key in [k for k in self._found if k[0] is node]:
                del self._found[key]

    def confirms(
        self, found: Again, node: torch.fx.Node, actual: torch.Tensor, changed: Container[torch.fx.Node]
    ) -> bool | None:
        """Whether the compiled result for these known values shows the error that was found; None if undecided.

        `changed` are the known nodes that have other values than they had when the error was found.
        """
        return _Closer(self, node, thorough=True).confirms(found, actual, changed)

    def instead(self, known: Mapping[torch.fx.Node, Any]) -> Replayer:
        """The same with other values for some of the known nodes."""
        known = {**self.known, **known}
        return Replayer(
            known, attribute=self.attribute, symbols=self._symbols, effects=self.effects, triton=self.triton
        )

    def needed(self, target: torch.fx.Node, known: Mapping[torch.fx.Node, Any] | None = None) -> list[torch.fx.Node]:
        """The nodes to compute for the target, parents first; from other `known` values if given."""
        return needed((target, *self.effects), self.known if known is None else known)

    def number(self, value: Any) -> Any:
        """The value of a symbolic number in this call; None if it depends on data."""
        return symbol_value(value, self._symbols)


def needed(targets: Iterable[torch.fx.Node], known: Mapping[torch.fx.Node, Any]) -> list[torch.fx.Node]:
    """The nodes to compute, parents first."""
    seen: set[torch.fx.Node] = set()
    stack = list(targets)
    while stack:
        node = stack.pop()
        if node in seen or node in known:
            continue
        seen.add(node)
        if not _is_number(node):
            stack += node.all_input_nodes
    return sorted(seen)  # Nodes are ordered as in their graph, which may be far larger than what is needed of it.


def is_mutable(node: torch.fx.Node) -> bool:
    """Whether a node overwrites one of its arguments, and somebody reads that instead of its result."""
    if is_users_kernel(node.target):
        return "tensors_to_clone" not in node.kwargs
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and not gives_what_it_writes(node)


def gives_what_it_writes(node: torch.fx.Node) -> bool:
    """Whether all that an operator overwrites in a list is read through its results, and nothing of the list later on.

    Inductor lets operators on lists work in place where that changes nothing. The functional form gives the same.
    """
    target: Any = node.target
    on_lists = getattr(target, "_opname", "").startswith("_foreach_") and target._schema.is_mutable
    if not on_lists or not node.args:
        return False
    overwritten: Any = node.args[0]
    results = {user.args[1] for user in node.users if user.target is operator.getitem}
    readers = [user for each in overwritten for user in each.users]
    return len(results) == len(node.users) == len(overwritten) and all(user <= node for user in readers)


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_own(node: torch.fx.Node) -> bool:
    return node.op != "call_function" or is_pytorchs(node.target)


class _Closer:
    """Looks at one result more closely than element by element."""

    def __init__(self, replayer: Replayer, node: torch.fx.Node, *, thorough: bool) -> None:
        self._replayer = replayer
        self._node = node
        self._order = replayer.needed(node)
        self.thorough = thorough

    @property
    def rounds(self) -> bool:
        return any(_rounds(node) for node in self._order)

    @property
    def sums(self) -> bool:
        adding = any(adds_up(node.target) for node in self._order if node.op == "call_function")
        return adding and sum(map(self._elements, self._order)) <= _MOST_SUSPECT

    def rounded(self, actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> list[torch.Tensor]:
        if not actual.is_floating_point() or any(is_mutable(n) or not _is_own(n) for n in self._order):
            return []
        elements = sum(map(self._elements, self._order))
        if elements > _MOST_SUSPECT or (elements > _MOST_ELEMENTS and not _is_suspect(actual, eager, exact)):
            return []
        samples = _SAMPLES if elements <= _MOST_ELEMENTS else _FEW_SAMPLES
        try:
            found = [self._exact(change=partial(_rounded, seed)) for seed in range(samples)]
        except (RuntimeError, NotImplementedError, IndexError) as e:  # An index of rounded numbers may be none.
            log.debug("no samples of %s: %s", self._node.name, e)
            return []
        return [eager, *found] if all(t.shape == actual.shape for t in (exact, *found)) else []

    def coherent(self, actual: torch.Tensor, rounded: Sequence[torch.Tensor]) -> Coherent | None:
        try:
            return find_coherent(actual, lambda change: self._exact(change=change), rounded, _rounds)
        except (RuntimeError, NotImplementedError, IndexError) as e:  # An operator that has no gradient, say.
            log.debug("no slopes of %s: %s", self._node.name, e)
            return None

    def confirms(self, found: Again, actual: torch.Tensor, changed: Container[torch.fx.Node]) -> bool | None:
        moved: set[torch.fx.Node] = set()
        for node in self._order:
            if any(parent in changed or parent in moved for parent in node.all_input_nodes):
                moved.add(node)

        def fixed(seed: int, node: torch.fx.Node, value: torch.Tensor, args: Any) -> torch.Tensor:
            return _biased(seed, node, value) if node in moved else _rounded(seed, node, value, args)

        constants = any(_rounds(node) for node in self._order if node not in moved or approximates(node.target))
        weighs = isinstance(found, SharedAgain)
        rounded, same = (
            [self._exact(change=partial(change, seed)) for seed in range(_FEW_SAMPLES if wanted else 0)]
            for change, wanted in ((_rounded, weighs), (fixed, constants))
        )
        return found.add(actual, lambda change: self._exact(change=change), rounded, same)

    def _exact(self, change: Change | None = None) -> torch.Tensor:
        result: torch.Tensor = self._replayer.run(self._node, Arithmetic.EXACT, change=change)
        return result

    def _elements(self, node: torch.fx.Node) -> int:
        """How many elements the value of a node has in this call; 0 if it is no tensor, or not known."""
        value = node.meta.get("val")
        count = value.numel() if isinstance(value, torch.Tensor) else 0
        return count if isinstance(count, int) else int(self._replayer.number(count) or 0)


def _is_suspect(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is off by more than usual taken as a whole: of many elements, this has to do."""
    own, other = (_size(t.to(torch.float64) - exact) for t in (actual, eager))
    return own > _UNUSUAL * max(other, torch.finfo(actual.dtype).eps * _size(exact))


def _size(t: torch.Tensor) -> float:
    return float(t.nan_to_num(0, 0, 0).square().mean().sqrt())


def _rounds(node: torch.fx.Node) -> bool:
    """Whether the value of a node is rounded: by its operator, as the size of a complex number, or to eight bits."""
    called = computed_by(node)
    if called.op != "call_function" or not hasattr(called.target, "_schema"):
        return is_users_kernel(called.target) or is_lowered(called.target)
    metas = [v for n in (node, *called.all_input_nodes) if isinstance(v := n.meta.get("val"), torch.Tensor)]
    unusual = any(m.is_complex() or (m.is_floating_point() and m.dtype.itemsize == 1) for m in metas)
    return unusual or rounds(called.target, called.args, called.kwargs)


def _narrows(node: torch.fx.Node) -> bool:
    """Whether a node converts numbers to a type that holds fewer digits of them."""
    metas = [n.meta.get("val") for n in (node, *node.all_input_nodes[:1])]
    dtypes = [m.dtype for m in metas if isinstance(m, torch.Tensor) and m.is_floating_point()]
    return len(dtypes) == 2 and torch.finfo(dtypes[0]).eps > torch.finfo(dtypes[1]).eps


def _rounded(seed: int, node: torch.fx.Node, value: torch.Tensor, args: Any) -> torch.Tensor:
    """A float64 value with an error as rounding to the program's dtype makes it. Equal values have equal errors."""
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or value.dtype is not torch.float64 or not (_rounds(node) or _narrows(node)):
        return value
    eps = torch.finfo(meta.dtype).eps
    noise = value_noise(value, seed)
    result = value * (1 + noise * (eps / 2))
    target: Any = computed_by(node).target
    sums = accumulation(target, args, value, meta.dtype) if hasattr(target, "_schema") else None
    if sums is not None:
        result = result + sums * noise
    return _biased(seed, node, result)


def _biased(seed: int, node: torch.fx.Node, value: torch.Tensor) -> torch.Tensor:
    """A float64 value with the error that an approximated function has for all arguments that are alike.

    Elements share it, and so do other data.
    """
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or value.dtype is not torch.float64 or not approximates(node.target):
        return value
    eps = min(torch.finfo(meta.dtype).eps, torch.finfo(torch.float32).eps)
    size = eps * math.cos(seed + sum(map(ord, node.name)))
    target: Any = node.target
    return value * (1 + size) + ABSOLUTE_ERRORS.get(target._opname, 0.0) * size


class _Values:
    """The values of the nodes in one run."""

    def __init__(
        self,
        replayer: Replayer,
        arithmetic: Arithmetic,
        seed: int,
        order: Iterable[torch.fx.Node],
        change: Change | None,
    ) -> None:
        """`order` are the nodes to compute: copies of the known values are used if something overwrites them."""
        self._change = change
        self._replayer = replayer
        self._operators = Operators(arithmetic, seed, partial(draw_as_kernels, triton=replayer.triton))
        given = self._operators.given
        self._given: Callable[[Any], Any] = given
        if any(is_users_kernel(n.target) for n in order):
            self._given = self._operators.given_to_users_kernel
        elif any(is_mutable(n) for n in order):
            # Without `self`: a cycle would keep the program's buffers beyond their call, as leaks of its own.
            self._given = lambda value: given(map_tensors(torch.clone, value))
        self._values: dict[torch.fx.Node, Any] = {}
        self._arguments: dict[torch.fx.Node, Any] = {}

    def of(self, node: torch.fx.Node) -> Any:
        """The value of a node that was computed, or of a known one as this arithmetic has it."""
        if node not in self._values:
            if node not in self._replayer.known:
                raise Unavailable(f"the value of {node.name} is not known here")
            # Kept, so that what overwrites it and what reads it afterwards see the same copy.
            self._values[node] = self._given(self._replayer.known[node])
        return self._values[node]

    def compute(self, node: torch.fx.Node) -> None:
        """Compute a node whose parents have values."""
        value = self._replayer.number(node.meta["val"]) if _is_number(node) else None
        value = self._run(node) if value is None else value
        if self._change is not None:
            value = self._changed(self._change, node, value)
        self._values[node] = value

    def _changed(self, change: Change, node: torch.fx.Node, value: Any) -> Any:
        called = computed_by(node)
        if called is node:
            args: Any = torch.fx.node.map_arg(node.args, self._values.get)
            if not isinstance(value, torch.Tensor):
                self._arguments[node] = args  # For its results, which are nodes of their own.
        else:
            args = self._arguments.get(called)  # None if it is known, so that nothing is computed here.
        return change(node, value, args) if args is not None and isinstance(value, torch.Tensor) else value

    def forget(self, node: torch.fx.Node) -> None:
        """Free the value of a node that is not read again."""
        self._values.pop(node, None)
        self._arguments.pop(node, None)

    def _run(self, node: torch.fx.Node) -> Any:
        match node.op:
            case "get_attr":
                attribute = self._replayer.attribute(str(node.target))
                return attribute if is_packed(attribute) else self._operators.given(attribute)
            case "call_function":
                return self._call(node)
            case "placeholder":
                raise Unavailable(f"it cannot be computed again: it needs {node.name}, which the kernel was not given")
            case _:
                raise Unavailable(f"{node.op} {node.target} cannot be replayed")

    def _call(self, node: torch.fx.Node) -> Any:
        target: Any = node.target
        name = getattr(target, "_opname", "") or str(target)
        value_of = self._value_or_stand_in if name in _METADATA_ONLY else self.of
        args: Any = torch.fx.node.map_arg(node.args, value_of)
        kwargs: Any = torch.fx.node.map_arg(node.kwargs, value_of)
        if is_users_kernel(target):
            return self._operators.users_kernel(dict(kwargs))
        if target is operator.getitem or not hasattr(target, "_schema"):
            if is_higher_order(target):
                raise Unavailable(f"{target} has subgraphs; they are checked on their own")
            return self._lowered(target, args, kwargs) if is_lowered(target) else target(*args, **kwargs)
        if in_plain_operators(str(target)) is not None:
            return self._aten(target, *args, **kwargs)
        if target.namespace == "torchsan" and name in ("probe", "realize"):
            return args[0].clone()  # Calling them would show the value to the user once more.
        args, kwargs = tuple(args), dict(kwargs)
        if gives_what_it_writes(node):
            target = getattr(getattr(torch.ops.aten, name.removesuffix("_")), target._overloadname)
        result = self._operators.call(target, args, kwargs, partial(_own_dtypes, node, args, kwargs))
        # Inductor takes what an operator on lists has overwritten for its result, where the operator returns nothing.
        return args[0] if result is None and name.startswith("_foreach_") else result

    def _lowered(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one of Inductor's own functions for several operators gives, which takes no tensors itself."""
        if target.__name__ == "mm_plus_mm":
            aten = torch.ops.aten
            pairs = (("mat1", "mat2"), ("mat3", "mat4"))
            products = [self._aten(aten.mm.default, *(kwargs[n] for n in names)) for names in pairs]
            return self._aten(aten.add.Tensor, *products)
        unknown = f"{target.__name__} is a function of Inductor's, whose meaning is not known here"
        function = operators_of(target, self._aten)
        if function is None:
            raise Unavailable(unknown)
        try:
            return function(*args, **kwargs)
        except (AttributeError, TypeError, AssertionError) as e:  # It wants Inductor's own objects.
            raise Unavailable(unknown) from e

    def _aten(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        if (plain := in_plain_operators(str(target))) is not None:
            return plain(self._aten, *map_tensors(self._dense, args), **kwargs)
        return self._operators.call(target, args, kwargs, lambda: (args, kwargs))

    def _dense(self, t: torch.Tensor) -> torch.Tensor:
        return self._operators.given(t.to_dense()) if is_packed(t) else t

    def _value_or_stand_in(self, node: torch.fx.Node) -> Any:
        """A node's value; if that is not known, a tensor with its metadata, for an operator that needs no more."""
        if node in self._values or node in self._replayer.known:
            return self.of(node)
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            raise Unavailable(f"the value of {node.name} is not known here")
        size = [s if isinstance(s, int) else self._replayer.number(s) for s in meta.shape]
        if any(s is None for s in size):
            raise Unavailable(f"the size of {node.name} is not known here")
        return self._operators.given(torch.zeros((), dtype=meta.dtype, device=meta.device)).expand(size)


def _own_dtypes(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
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
