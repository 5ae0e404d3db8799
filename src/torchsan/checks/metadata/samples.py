"""Arguments for an operator, made from its schema: the layouts, dtypes and sizes that fake kernels get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["Sample", "generated_samples"]

Sample = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the named arguments of one call."""

_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "a matrix": lambda: _filled(4, 6),
    "a square": lambda: _filled(4, 4),
    "transposed": lambda: _filled(6, 4).t(),
    "a slice, with an offset": lambda: _filled(6, 8)[1:5, 2:8],
    "a vector": lambda: _filled(5),
    "four dimensions": lambda: _filled(2, 3, 4, 4),
    "channels last": lambda: _filled(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "one element": lambda: _filled(1, 1),
    "no elements": lambda: _filled(0, 3),
    "a scalar": lambda: _filled().reshape(()),
    "with a gradient": lambda: _filled(4, 6).requires_grad_(),
    "bfloat16": lambda: _filled(4, 6).to(torch.bfloat16),
    "float64": lambda: _filled(4, 6).double(),
    "int64": lambda: torch.arange(24).reshape(4, 6) % 4,
    "bool": lambda: (torch.arange(24).reshape(4, 6) % 2).bool(),
    "complex64": lambda: torch.complex(_filled(4, 6), _filled(4, 6)),
}


def _filled(*size: int) -> torch.Tensor:
    count = max(1, int(torch.tensor(size).prod())) if 0 not in size else 0
    return (torch.arange(count, dtype=torch.float32) / 7 - 1.3).reshape(size)


def generated_samples(overload: Any) -> Iterator[tuple[str, Sample]]:
    """Name and arguments of calls to try; which of them the operator takes, it says itself.

    All tensors of a call are alike. What has a default keeps it. Nothing is yielded for an argument that cannot be
    made up, such as an object.
    """
    for name, make in _TENSORS.items():
        try:
            values = [(a, _value(a, make)) for a in overload._schema.arguments if not a.has_default_value()]
        except ValueError:
            return
        args = tuple(v for a, v in values if not a.kwarg_only)
        yield name, (args, {a.name: v for a, v in values if a.kwarg_only})
        if not any("Tensor" in str(a.type) for a, _ in values):
            return


def _value(argument: Any, make: Callable[[], torch.Tensor]) -> Any:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    simple: dict[str, Any] = {
        "int": 1,
        "SymInt": 1,
        "float": 0.5,
        "bool": True,
        "str": "",
        "number": 2,
        "Scalar": 2,
        "Device": torch.device("cpu"),
        "ScalarType": torch.float32,
        "Layout": torch.strided,
    }
    if kind == "Tensor":
        return make()
    if kind in simple:
        return simple[kind]
    if kind.startswith(("List[Tensor", "List[Optional[Tensor")):
        return [make(), make()]
    if kind.startswith("List["):
        return [simple[kind[5:].rstrip("]")]] * 2 if kind[5:].rstrip("]") in simple else []
    raise ValueError(f"no value for {argument.type}")
