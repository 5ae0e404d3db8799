"""Operators of libraries as kernels: what is refereed of one, given the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchsan.kernels.judging import Nothing
from torchsan.kernels.referee import Task
from torchsan.kernels.targets import claimed_or_nothing

SEEDS = 24


def operator_task(
    overload: Any, args: tuple[Any, ...], *, seconds: float, reference: Callable[..., Any] | None = None
) -> Task:
    """What to referee of an operator that was called with these arguments.

    Without a reference, it is compared with the operator of PyTorch that it is named after, if the two agree on these
    arguments: another name may mean anything.
    """
    return Task(
        kernel=lambda: overload,
        reference=lambda given: reference or claimed_or_nothing(overload, given),
        inputs=lambda: (args, None),
        tentative=None if reference is not None else Nothing(operator=overload),
        seeds=SEEDS,
        seconds=seconds,
    )


def positional(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The arguments of a call without names; None if some need theirs."""
    values, rest, left = list(args), list(overload._schema.arguments)[len(args) :], set(kwargs)
    for argument in rest:
        if not left:
            break
        if argument.kwarg_only:
            return None
        values.append(kwargs.get(argument.name, argument.default_value))
        left.discard(argument.name)
    return tuple(values)
