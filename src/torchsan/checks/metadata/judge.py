"""One operator call judged: what it did to memory against its schema, what it returned against what was believed.

Nothing here runs the operator or knows where the call came from; it looks at tensors before and after.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from torchsan.checks.metadata.compare import Difference, Facts, facts, leaves
from torchsan.torch_internals.operators import has_storage, is_own, map_tensors, tensors_in, undisturbed

_EMPTY = b""


def bits(t: torch.Tensor) -> bytes:
    """A digest of the elements of `t` as they lie in memory: another bit, another digest (NaN payloads, −0 too).

    128 bits of XXH3, at memory speed; two states of one tensor get the same digest by accident once in 2¹²⁸.
    """
    t = t.detach()
    if t.numel() == 0:
        return _EMPTY
    if t.is_conj():
        t = t.conj()
    if t.is_neg():
        t = torch.ops.aten._neg_view.default(t)
    if not t.is_contiguous() or t.device.type != "cpu":
        # A copy of the elements as raw words, so that none is rounded or normalised on the way.
        t = t.view(_WORDS.get(t.element_size(), t.dtype)).contiguous().cpu()
    length = t.numel() * t.element_size()
    return xxhash.xxh3_128_digest((ctypes.c_char * length).from_address(t.data_ptr()))


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_ANYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One tensor among the arguments. `name` is the argument's, with a position in it if that is a list.

    `sets` are the names by which the schema says what it may share memory with.
    """

    name: str
    tensor: torch.Tensor
    written: bool
    sets: frozenset[str]


def inputs(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Input]:
    """The tensors among the arguments, in the order in which a tree walk meets them."""
    arguments = list(overload._schema.arguments)
    by_name = {a.name: a for a in arguments}
    given = [(arguments[i], v) for i, v in enumerate(args) if i < len(arguments)]
    given += [(by_name[k], v) for k, v in kwargs.items() if k in by_name]
    for argument, value in given:
        info = argument.alias_info
        for i, tensor in enumerate(tensors_in(value)):
            yield Input(
                name=argument.name if isinstance(value, torch.Tensor) else f"{argument.name}[{i}]",
                tensor=tensor,
                written=info is not None and info.is_write,
                sets=_sets(info),
            )


def return_sets(overload: Any, path: str) -> frozenset[str]:
    """What the result at `path` (as `leaves` names it) may share memory with."""
    returns = overload._schema.returns
    if not returns:
        return frozenset()
    position = 0
    if len(returns) > 1 and path:
        position = int(path[1 : path.index("]")])
    return _sets(returns[position].alias_info) if position < len(returns) else frozenset()


def may_alias(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether the schema lets two tensors share memory. A set `*` may be anything."""
    return bool(one & other) or (_ANYTHING in one and bool(other)) or (_ANYTHING in other and bool(one))


def _sets(info: Any) -> frozenset[str]:
    if info is None:
        return frozenset()
    # A list of tensors has its names on its elements, where Python cannot see them: it may be any of them.
    return frozenset(s.rpartition("::")[2] for s in {*info.before_set, *info.after_set}) or frozenset({_ANYTHING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The arguments of a call before it ran: their facts, and the bits of those that can be looked at."""

    inputs: tuple[Input, ...]
    facts: tuple[Facts, ...]
    bits: dict[int, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An argument that a call changed. `what` is `bits`, or the metadata that changed."""

    argument: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What a call did to its arguments, against its schema."""

    undeclared: tuple[Change, ...]
    idle: frozenset[str]
    """The arguments that are declared to be written, and were left as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Two tensors of a call that share a storage. `overlap` is False if their elements lie apart in it."""

    one: str
    other: str
    declared: bool
    overlap: bool


_STATISTICS = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm",
    "instance_norm",
    "_batch_norm_impl_index",
)
"""Their schemas hide that they update running statistics. PyTorch takes that into account where it traces them."""

_MAY_ALIAS = ("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift_fresh", "_reshape_alias", "_unsafe_view")
"""Their results share memory by design: whoever calls them promises not to write to it."""


def _is_one_of(overload: Any, names: tuple[str, ...]) -> bool:
    """Whether an operator is PyTorch's own, with one of these names."""
    return is_own(overload) and str(overload).split(".")[1] in names


def arguments_before(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Memory:
    """Take down what the call may not change, and what it says that it changes."""
    found = tuple(inputs(overload, args, kwargs))
    with undisturbed():
        return Memory(
            inputs=found,
            facts=tuple(facts(i.tensor) for i in found),
            bits={n: bits(i.tensor) for n, i in enumerate(found) if _readable(i.tensor)},
        )


def arguments_again(
    before: Memory, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call that is over, with the metadata that they had before it. The tensors are left alone."""
    others: dict[int, torch.Tensor] = {}
    for argument, old in zip(before.inputs, before.facts, strict=True):
        t, new = argument.tensor, facts(argument.tensor)
        if old.storage is None or old.offset is None:
            continue
        if (old.size, old.stride, old.offset, old.requires_grad) != (
            new.size,
            new.stride,
            new.offset,
            new.requires_grad,
        ):
            size: Any = old.size
            stride: Any = old.stride
            view = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage(), old.offset, size, stride)
            others[id(t)] = view.requires_grad_(old.requires_grad)
    if not others:
        return args, kwargs
    again: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors(lambda t: others.get(id(t), t), (args, kwargs))
    return again


def writes(overload: Any, before: Memory) -> Writes:
    """Look at the arguments again, now that the call is over."""
    written = {f.storage for i, f in zip(before.inputs, before.facts, strict=True) if i.written}
    undeclared: list[Change] = []
    idle: set[str] = set()
    with undisturbed():
        for n, (argument, old) in enumerate(zip(before.inputs, before.facts, strict=True)):
            changed = _change(argument.tensor, old, before.bits.get(n))
            if argument.written:
                if changed is None and n in before.bits and argument.tensor.numel():
                    idle.add(argument.name)
            elif changed is not None and old.storage not in written and not _is_one_of(overload, _STATISTICS):
                undeclared.append(Change(argument=argument.name, what=changed))
    return Writes(undeclared=tuple(undeclared), idle=frozenset(idle))


def _change(t: torch.Tensor, old: Facts, old_bits: bytes | None) -> str | None:
    new = facts(t)
    for name in ("dtype", "size", "stride", "offset"):
        if getattr(new, name) != getattr(old, name):
            return name
    if old_bits is not None and bits(t) != old_bits:
        return "bits"
    return None


def aliases(overload: Any, inputs: Sequence[Input], result: Any) -> list[Alias]:
    """The pairs of results with arguments, and of results, that share a storage and hold anything."""
    named = _outputs(overload, result)
    found: list[Alias] = []
    # As they are now: an operator may resize what it writes.
    arguments = [(i.name, facts(i.tensor), i.sets) for i in inputs]
    for n, (one, mine, sets) in enumerate(named):
        others = [*arguments, *named[:n]]
        # Arguments may share memory among themselves: a result that may be one of them then shares it with the others.
        allowed = {f.storage for _, f, theirs in arguments if may_alias(sets, theirs)}
        for other, theirs, other_sets in others:
            if mine.storage is not None and mine.storage == theirs.storage and not (mine.empty or theirs.empty):
                found.append(
                    Alias(
                        one=one,
                        other=other,
                        declared=mine.storage in allowed or may_alias(sets, other_sets),
                        overlap=_overlap(mine, theirs),
                    )
                )
    return found


def undeclared_aliases(overload: Any, before: Memory, result: Any) -> list[Alias]:
    """Those of them that the schema does not declare."""
    if _is_one_of(overload, _MAY_ALIAS):
        return []
    return [alias for alias in aliases(overload, before.inputs, result) if not alias.declared]


def alias_differences(
    overload: Any, before: Memory, result: Any, fake_inputs: Sequence[Any], fake: Any
) -> list[Difference]:
    """Where the fake kernel aliases and the real one does not, or the other way round, pair by pair.

    A real alias that the schema does not allow is left out: that is a finding of its own.
    """
    real = {(a.one, a.other): a for a in aliases(overload, before.inputs, result)}
    believed_inputs = [dataclasses.replace(i, tensor=t) for i, t in zip(before.inputs, fake_inputs, strict=True)]
    believed = {(a.one, a.other): a for a in aliases(overload, believed_inputs, fake)}
    empty = {name for name, f, _sets in _outputs(overload, result) if f.empty}
    found = []
    for pair in [*real, *(p for p in believed if p not in real)]:
        if (pair in real) == (pair in believed) or (pair in real and not real[pair].declared) or empty & set(pair):
            continue
        found.append(
            Difference(
                what=f"{pair[0]} with {pair[1]}",
                field="alias",
                real="one storage" if pair in real else "separate",
                believed="one storage" if pair in believed else "separate",
            )
        )
    return found


def _outputs(overload: Any, result: Any) -> list[tuple[str, Facts, frozenset[str]]]:
    return [
        (f"output{path}", facts(value), return_sets(overload, path))
        for path, value in leaves(result)
        if isinstance(value, torch.Tensor)
    ]


def _overlap(one: Facts, other: Facts) -> bool:
    if one.extent is None or other.extent is None:
        return True
    return one.extent[0] < other.extent[1] and other.extent[0] < one.extent[1]


def _readable(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and t.device.type != "meta" and not t.is_quantized and has_storage(t)
