"""A dispatch mode that sees operator calls, and how it gets onto a thread's stack of modes and off again.

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # for those who derive from it
from torch.utils._python_dispatch import _pop_mode, _push_mode


def flatten(tree: Any) -> list[Any]:
    """The leaves, in order."""
    return list(_pytree.tree_leaves(tree))


def unflatten_call(program: Any, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an exported program from their leaves, as it was exported with."""
    args, kwargs = _pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(args), dict(kwargs)


Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operator that was called with these arguments, and returns its result."""

_is_alias_of: Callable[[Any, Any], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]  # not in torch's stubs
_PLAIN = {torch.Tensor, torch.nn.Parameter}


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is untyped
    """Passes every call of an operator on plain tensors to `handler`, which runs it. One object a thread.

    Calls on fake and functional tensors run as they are: what the compiler traces is not the program. A tensor
    subclass gets its call as it would without the mode, and the calls that it makes are seen.
    """

    supports_higher_order_operators = True

    def __init__(self, handler: Handler | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.handler = handler

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """`torch.compile` compiles as if the mode were not there."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `hide_from_dynamo` does it below; PyTorch's own way costs 3 µs a call.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = self.handler
        if handler is None:
            return func(*args, **(kwargs or {}))
        if types and not _PLAIN.issuperset(types):
            return self._other_types(func, types, args, kwargs or {})
        if type(func) is not OpOverload:
            return func(*args, **(kwargs or {}))
        return handler(func, args, kwargs or {})

    def _other_types(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wraps = any(t.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for t in types if t not in _PLAIN)
        if wraps and not _len_torch_dispatch_stack() and not isinstance(func, HigherOrderOperator):
            return NotImplemented  # The subclass takes over, with this mode back on for what it calls.
        return func(*args, **kwargs)


def hide_from_dynamo(function: Callable[..., Any]) -> None:
    """Let Dynamo compile neither the function nor what it calls.

    After a graph break it looks at every frame that runs, torchsan's too. The mark is on the code itself: where Dynamo
    is not at work it costs nothing, and it imports nothing.
    """
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


hide_from_dynamo(OperatorMode.__torch_dispatch__)


def push_mode(mode: OperatorMode) -> None:
    """Put the mode on top of this thread's stack. Unlike `with`, it sets no flag that other threads see."""
    _push_mode(mode)


def pop_mode(mode: OperatorMode) -> None:
    """Take the mode off this thread's stack, wherever in it it is; do nothing if it is not there."""
    above: list[TorchDispatchMode] = []
    while _len_torch_dispatch_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


def storage_pattern(tensors: list[Any]) -> tuple[int, ...]:
    """For each tensor the position of the first that has the same storage; empty if all have their own."""
    if len(tensors) < 2:
        return ()
    if len(tensors) == 2:
        return (0, 0) if _is_alias_of(tensors[0], tensors[1]) else ()
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) == len(storages):
        return ()
    first: dict[int, int] = {}
    return tuple(first.setdefault(s, i) for i, s in enumerate(storages))
