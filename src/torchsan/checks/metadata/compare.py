"""Two accounts of one result, compared: what the operator really returned and what was believed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.checks.metadata.facts import Facts, Number, facts, leaves, structure
from torchsan.torch_internals.fakes import known_number

__all__ = ["ALL_FIELDS", "Difference", "compare_facts", "compare_results"]

ALL_FIELDS = frozenset({"size", "dtype", "stride", "offset", "device", "layout", "requires_grad"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that differs. `what` is `output`, `output[1]`, or a pair of them; the sides are JSON values."""

    what: str
    field: str
    real: Any
    believed: Any


def compare_results(
    real: Any,
    believed: Any,
    *,
    fields: frozenset[str] = ALL_FIELDS,
    number: Number = known_number,
) -> list[Difference]:
    """Return every difference between two results, leaf by leaf; only that of structure if there is one."""
    shapes = structure(real), structure(believed)
    if shapes[0] != shapes[1]:
        return [Difference(what="output", field="structure", real=shapes[0], believed=shapes[1])]
    found: list[Difference] = []
    for one, other in zip(leaves(real), leaves(believed), strict=True):
        if isinstance(one.value, torch.Tensor):
            found += compare_facts(f"output{one.path}", facts(one.value), facts(other.value, number), fields)
    return found


def compare_facts(what: str, real: Facts, believed: Facts, fields: Iterable[str]) -> Iterator[Difference]:
    """Every field of one tensor that differs, of those that can be compared."""
    for field in sorted(fields):
        sides = getattr(real, field), getattr(believed, field)
        if not _same(field, real, believed):
            yield Difference(what=what, field=field, real=_json(sides[0]), believed=_json(sides[1]))


def _same(field: str, real: Facts, believed: Facts) -> bool:
    if field == "size":
        return _sizes_agree(real.size, believed.size)
    if field == "stride":
        return _strides_agree(real, believed)
    if field == "offset":
        # Where the elements of an empty tensor begin is nowhere.
        return real.empty or None in (real.offset, believed.offset) or real.offset == believed.offset
    return bool(getattr(real, field) == getattr(believed, field))


def _sizes_agree(real: tuple[int | None, ...], believed: tuple[int | None, ...]) -> bool:
    """Sizes that depend on data (None) agree with anything."""
    return len(real) == len(believed) and all(b is None or r == b for r, b in zip(real, believed, strict=True))


def _strides_agree(real: Facts, believed: Facts) -> bool:
    """Strides count only where they lead somewhere: in dimensions of two or more, of tensors that have elements."""
    if real.stride is None or believed.stride is None or real.empty or len(real.size) != len(believed.size):
        return True  # Another layout or number of dimensions is a difference of its own.
    return all(b is None or r == b or n == 1 for n, r, b in zip(real.size, real.stride, believed.stride, strict=True))


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
