"""Functions of Inductor's pattern matcher that stand in a graph for several operators, and are known by name only.

A pass that fuses, say, a linear layer with what follows it puts the function there that lowers them. What it would
lower says what it computes.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

Call = Callable[..., Any]
"""Computes an operator: its overload, then its arguments."""


def is_lowered(target: Any) -> bool:
    """Whether a node's target is such a function."""
    return not hasattr(target, "_schema") and str(getattr(target, "__module__", "")).startswith("torch._inductor")


def operators_of(target: Any, call: Call) -> Callable[..., Any] | None:
    """What such a function computes, as a function of tensors that makes its operators by `call`; None if not known.

    Its own code runs, with `call` where it looks a lowering up. It counts what it does, elsewhere than in Inductor.
    """
    function = getattr(target, "func", None)
    if not isinstance(target, functools.partial) or not isinstance(function, FunctionType):
        return None
    if not {"L", "ir"} & set(function.__code__.co_names):
        return None
    import torch

    instead = {
        "L": _Lowerings(call),
        "ir": SimpleNamespace(TensorBox=torch.Tensor),
        "counters": defaultdict(Counter),
        "_can_be_inplace": lambda _: False,
    }
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **instead},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.partial(made, *target.args, **target.keywords)


class _Lowerings:
    """Inductor's table of lowerings, with operators that compute in their places."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getitem__(self, operator: Any) -> Callable[..., Any]:
        return functools.partial(self._call, operator)
