"""Two accounts of one result, compared: what the operator really returned and what was believed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.torch_internals.fakes import known_number
from torchsan.torch_internals.operators import has_storage, storage_key

Number = Callable[[Any], Any]
"""From a size, which may be symbolic, to its value; None where it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The metadata of one tensor. Sizes that depend on data are None, and so is what depends on them.

    `storage` tells tensors of one run apart by their memory; None for a tensor that has none. `extent` is the range of
    bytes in it that the elements lie in.
    """

    size: tuple[int | None, ...]
    dtype: str
    stride: tuple[int | None, ...] | None
    offset: int | None
    device: str
    layout: str
    requires_grad: bool
    storage: int | None = None
    extent: tuple[int, int] | None = None

    @property
    def empty(self) -> bool:
        """Whether it has no elements."""
        return 0 in self.size


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that a result is made of, `None` included, each with the way to it.

    That is `""` for a result that is one value, else `[0]`, `[1][2]`.
    """
    if isinstance(value, list | tuple):
        for i, element in enumerate(value):
            yield from leaves(element, f"{path}[{i}]")
    else:
        yield path, value


def structure(value: Any) -> str:
    """The shape of a result as people write it: `(tensor, None, [tensor, tensor])`. Lists and tuples are the same."""
    if isinstance(value, list | tuple):
        return f"({', '.join(structure(v) for v in value)})"
    if isinstance(value, torch.Tensor):
        return "tensor"
    if value is None:
        return "None"
    if isinstance(value, bool | torch.SymBool):
        return "bool"
    if isinstance(value, int | torch.SymInt):
        return "int"
    if isinstance(value, float | torch.SymFloat):
        return "float"
    return type(value).__name__


def facts(t: torch.Tensor, number: Number = known_number) -> Facts:
    """The metadata of a tensor; `number` tells what its symbolic sizes are."""
    size = tuple(number(n) for n in t.shape)
    stride = offset = storage = None
    if t.layout is torch.strided:
        stride = tuple(number(n) for n in t.stride())
        offset = number(t.storage_offset())
        storage = storage_key(t) if has_storage(t) else None
    return Facts(
        size=size,
        dtype=_name(t.dtype),
        stride=stride,
        offset=offset,
        device=str(t.device),
        layout=_name(t.layout),
        requires_grad=t.requires_grad,
        storage=storage,
        extent=_extent(size, stride, offset, t.element_size()),
    )


def _extent(size: Any, stride: Any, offset: int | None, width: int) -> tuple[int, int] | None:
    if stride is None or offset is None or None in size or None in stride:
        return None
    last = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else -1
    return (offset * width, (offset + last + 1) * width)


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


ALL_FIELDS = frozenset({"size", "dtype", "stride", "offset", "device", "layout", "requires_grad"})
BELIEVED_FIELDS = frozenset({"size", "dtype", "device", "layout"})
"""What Inductor takes from a node. It lays out results anew, so strides are what the program asserts itself."""


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
    for (path, one), (_, other) in zip(leaves(real), leaves(believed), strict=True):
        if isinstance(one, torch.Tensor):
            found += compare_facts(f"output{path}", facts(one), facts(other, number), fields)
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
