"""One operator call judged: what it did to memory against its schema, what it returned against what was believed.

Nothing here runs the operator or knows where the call came from; it looks at tensors before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsan.checks.metadata.bits import bits
from torchsan.checks.metadata.compare import Difference
from torchsan.checks.metadata.facts import Facts, facts, leaves
from torchsan.checks.metadata.schema import Input, inputs, may_alias, return_sets
from torchsan.torch_internals.operators import undisturbed

__all__ = ["Alias", "Memory", "Mutation", "alias_differences", "aliases", "mutations", "photograph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The arguments of a call before it ran: their facts, and the bits of those that can be looked at."""

    inputs: tuple[Input, ...]
    facts: tuple[Facts, ...]
    bits: dict[int, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """An argument that changed, or that did not although it was declared to."""

    argument: str
    declared: bool
    what: str
    """`bits`, or the metadata that changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Two tensors of a call that share a storage. `overlap` is False if their elements lie apart in it."""

    one: str
    other: str
    declared: bool
    overlap: bool


def photograph(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Memory:
    """Take down what the call may not change, and what it says that it changes."""
    found = tuple(inputs(overload, args, kwargs))
    with undisturbed():
        return Memory(
            inputs=found,
            facts=tuple(facts(i.tensor) for i in found),
            bits={n: bits(i.tensor) for n, i in enumerate(found) if _readable(i.tensor)},
        )


def mutations(before: Memory) -> list[Mutation]:
    """The undeclared changes of arguments, and the declared ones that did not happen."""
    written = {f.storage for i, f in zip(before.inputs, before.facts, strict=True) if i.written}
    found: list[Mutation] = []
    with undisturbed():
        for n, (argument, old) in enumerate(zip(before.inputs, before.facts, strict=True)):
            changed = _change(argument.tensor, old, before.bits.get(n))
            if argument.written:
                if changed is None and n in before.bits and argument.tensor.numel():
                    found.append(Mutation(argument=argument.name, declared=True, what="bits"))
            elif changed is not None and old.storage not in written:
                found.append(Mutation(argument=argument.name, declared=False, what=changed))
    return found


def _change(t: torch.Tensor, old: Facts, old_bits: bytes | None) -> str | None:
    new = facts(t)
    for name in ("dtype", "size", "stride", "offset"):
        if getattr(new, name) != getattr(old, name):
            return name
    if old_bits is not None and bits(t) != old_bits:
        return "bits"
    return None


def aliases(overload: Any, before: Memory, result: Any) -> list[Alias]:
    """The pairs of results with arguments, and of results, that share a storage and hold anything."""
    named = _outputs(overload, result)
    found: list[Alias] = []
    # As they are now: an operator may resize what it writes.
    arguments = [(i.name, facts(i.tensor), i.sets) for i in before.inputs]
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


def alias_differences(
    overload: Any, before: Memory, result: Any, fake_inputs: Sequence[Any], fake: Any
) -> list[Difference]:
    """Where the fake kernel aliases and the real one does not, or the other way round, pair by pair.

    A real alias that the schema does not allow is left out: that is a finding of its own.
    """
    real = {(a.one, a.other): a for a in aliases(overload, before, result)}
    believed_inputs = tuple(
        Input(name=i.name, tensor=t, written=i.written, sets=i.sets)
        for i, t in zip(before.inputs, fake_inputs, strict=True)
    )
    believed_memory = Memory(inputs=believed_inputs, facts=tuple(facts(t) for t in fake_inputs), bits={})
    believed = {(a.one, a.other): a for a in aliases(overload, believed_memory, fake)}
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
        (f"output{leaf.path}", facts(leaf.value), return_sets(overload, leaf.path))
        for leaf in leaves(result)
        if isinstance(leaf.value, torch.Tensor)
    ]


def _overlap(one: Facts, other: Facts) -> bool:
    if one.extent is None or other.extent is None:
        return True
    return one.extent[0] < other.extent[1] and other.extent[0] < one.extent[1]


def _readable(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and t.device.type != "meta" and not t.is_quantized and torch._C._has_storage(t)
