"""What was seen before is not looked at again: calls by the metadata of their arguments. Importing it imports torch.

This is the only code that runs at every operator call, so it is written for speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsan.torch_internals.dispatch import storage_pattern
from torchsan.torch_internals.operators import is_composite, is_own
from torchsan.watch.operators import OperatorCall, OperatorObserver, Remember

_MOST = {True: 100, False: 1000}
"""How many kinds of arguments of an operator of PyTorch's own (True), or of another one, are looked at."""

_NEW: Any = object()
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_VALUES = {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, complex}


class _Operator:
    """What is known of one overload. It holds the overload, so that its address stays its own."""

    __slots__ = ("composite", "overload", "own", "seen", "wanted")

    def __init__(self, overload: Any, wanted: bool) -> None:
        self.overload = overload
        self.own = is_own(overload)
        self.wanted = wanted
        self.composite = self.own and is_composite(overload)
        self.seen: dict[tuple[Any, ...], Callable[[], None] | None] = {}
        """The kinds of call that were looked at; with a function, those to count."""


class SeenCalls:
    """Runs calls, those of a new kind through `look`, which tells whether the kind may be remembered."""

    def __init__(
        self, observer: OperatorObserver, look: Callable[[OperatorCall, Callable[[], Any]], tuple[Any, Remember]]
    ) -> None:
        self._observer = observer
        self._look = look
        self._operators: dict[int, _Operator] = {}

    def handle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call and return its result."""
        operator = self._operators.get(id(func))
        if operator is None:
            operator = self._operators[id(func)] = _Operator(func, self._observer.wants(func))
        if operator.wanted:
            key = call_key(args, kwargs, operator.own)
            if key is not None:
                seen = operator.seen.get(key, _NEW)
                if seen is _NEW:
                    return self._first(operator, key, args, kwargs)
                if seen is not None:
                    seen()
        return func(*args, **kwargs) if kwargs else func(*args)

    def _first(self, operator: _Operator, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = operator.overload
        if operator.composite:
            # Only inference mode lets these through whole. Where they return an argument as it is, they may.
            operator.wanted = False
            self._observer.not_covered(
                str(func), "runs as a whole, as in inference mode; the operators in it are not seen"
            )
            return func(*args, **kwargs)
        if len(operator.seen) >= _MOST[operator.own]:
            operator.wanted = False
            self._observer.not_covered(
                str(func), f"seen with {len(operator.seen)} kinds of arguments; the others are not looked at"
            )
            return func(*args, **kwargs)
        call = OperatorCall(overload=func, args=args, kwargs=kwargs)
        result, remember = self._look(call, lambda: func(*args, **kwargs))
        if remember:
            operator.seen[key] = None if remember is True else remember
        return result


def call_key(args: tuple[Any, ...], kwargs: dict[str, Any], own: bool) -> tuple[Any, ...] | None:
    """What a call's metadata can depend on; None if it has tensors that cannot be looked at.

    A float of an operator of PyTorch's own counts by its value only where there is no tensor: it sizes `arange`, while
    among tensors it is a factor, which optimizers change with every step.
    """
    parts: list[Any] = []
    tensors: list[Any] = []
    floats: list[float] = []
    try:
        for value in args:
            _add(value, parts, tensors, floats)
        for name, value in kwargs.items():
            parts.append(name)
            _add(value, parts, tensors, floats)
        if len(tensors) > 1:
            parts.append(storage_pattern(tensors))
    except (RuntimeError, NotImplementedError):  # No strides, no storage: sparse and opaque tensors.
        return None
    if not own or not tensors:
        parts += floats
    return tuple(parts)


def _add(value: Any, parts: list[Any], tensors: list[Any], floats: list[float]) -> None:
    kind = type(value)
    if kind is _Tensor or kind is _Parameter:
        tensors.append(value)
        parts += (value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad)
        if not value.is_cpu:
            parts.append(value.device)
        if value.dtype.is_complex:
            parts.append(value.is_conj())
    elif kind in _VALUES:
        parts.append(value)
    elif kind is float:
        parts.append(float)
        floats.append(value)
    elif kind is list or kind is tuple:
        parts.append(len(value))
        for element in value:
            _add(element, parts, tensors, floats)
    else:
        parts.append(kind)
