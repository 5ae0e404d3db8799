"""What can be said of a result without its data, taken from real, fake and symbolic tensors alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.torch_internals.fakes import known_number

__all__ = ["Facts", "Leaf", "facts", "leaves", "structure", "tensors_in"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value of a result, and the way to it: `""` for a result that is one value, `[0]`, `[1][2]`."""

    path: str
    value: Any


def leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """The values that a result is made of, `None` included."""
    if isinstance(value, list | tuple):
        for i, element in enumerate(value):
            yield from leaves(element, f"{path}[{i}]")
    else:
        yield Leaf(path=path, value=value)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors in arguments: those in lists, and in the values of a dictionary, too."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return [t for v in values for t in tensors_in(v)]
    return []


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
        storage = t.untyped_storage()._cdata if torch._C._has_storage(t) else None
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
