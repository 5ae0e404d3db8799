"""Sees operator calls: through a mode on a thread's stack, and at the Functionalize key.

Importing this module imports torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # for those who derive from it
from torch.utils._python_dispatch import _pop_mode, _push_mode

from torchsan.torch_internals.operators import loaded_overloads, map_tensors
from torchsan.torch_internals.patches import Patches

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operator that was called with these arguments, and returns its result."""

_is_alias_of: Callable[[Any, Any], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]  # not in torch's stubs
_PLAIN = {torch.Tensor, torch.nn.Parameter}


def hide_from_dynamo(function: Callable[..., Any]) -> None:
    """Let Dynamo compile neither the function nor what it calls.

    After a graph break it looks at every frame that runs, torchsan's too. The mark is on the code itself: where Dynamo
    is not at work it costs nothing, and it imports nothing.
    """
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


class QuietMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is untyped
    """A mode that Dynamo does not compile. PyTorch's own way to that costs 3 µs a call, and imports all of Dynamo."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]  # as above
        hide_from_dynamo(cls.__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class OperatorMode(QuietMode):
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


def call_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator's kernel for the CPU itself, so that the modes of this thread see what it calls."""
    return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)


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


def rest_mode(mode: OperatorMode) -> bool:
    """Take the mode off this thread's stack if it is the only one there and nothing is under way; return whether so."""
    if _len_torch_dispatch_stack() != 1 or not _undisturbed():
        return False
    top = _pop_mode()
    if top is not mode:
        _push_mode(top)
    return top is mode


def resume_mode(mode: OperatorMode) -> bool:
    """Put the mode on this thread's stack if that is empty and nothing is under way; return whether so."""
    if _len_torch_dispatch_stack() or not _undisturbed():
        return False
    _push_mode(mode)
    return True


def _undisturbed() -> bool:
    """Whether this is the program's own code, and nothing around it puts the state of the dispatcher back.

    With the stack comes a dispatch key. What is around (an inference mode, a kernel in Python, a backward) may have
    kept a copy of all keys, and at its end the stack and the key would no longer agree.
    """
    return (
        not torch.is_inference_mode_enabled()
        and torch._C._current_graph_task_id() == -1
        and torch._C._functorch.maybe_current_level() is None
        # Under autocast there are fewer, which are put back one by one.
        and (torch._C._dispatch_tls_local_exclude_set() | _excluded) == _excluded
    )


_excluded = torch._C._dispatch_tls_local_exclude_set()
"""The dispatch keys that are off in code of nobody's."""


def remove_own_modes() -> None:
    """Take every mode of torchsan's off this thread's stack, and leave the program's."""
    kept: list[TorchDispatchMode] = []
    while _len_torch_dispatch_stack():
        top = _pop_mode()
        if not isinstance(top, OperatorMode):
            kept.append(top)
    for other in reversed(kept):
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


Seen = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
"""Given an overload, its arguments without their wrappers and how to run it, runs it and returns its result."""


def observe_functionalize(patches: Patches, seen: Seen) -> None:
    """Call `seen` for each operator that `torch.func.functionalize` calls, until the patches are restored.

    PyTorch's own hook for this is used, with our handler in it, and only while a function is being functionalised.
    """
    guards = threading.local()

    def attach(_transforms: Any) -> None:
        patches.on_restore(_forget_dispatches)
        patches.replace("torch._dispatch.python", "CROSSREF_FUNCTIONALIZE", lambda _original: True)
        patches.replace("torch._dispatch.python", "make_crossref_functionalize", lambda _original: _maker(seen))
        _forget_dispatches()
        patches.wrap("torch._functorch.eager_transforms", "_func_increment_nesting", increment)
        patches.wrap("torch._functorch.eager_transforms", "_func_decrement_nesting", decrement)

    def increment(original: Callable[..., Any], reapply_views: Any) -> Any:
        from torch._dispatch.python import enable_python_dispatcher

        level = original(reapply_views)
        guard: Any = enable_python_dispatcher()
        guard.__enter__()
        vars(guards).setdefault("stack", []).append(guard)
        return level

    def decrement(original: Callable[..., Any]) -> Any:
        stack = vars(guards).get("stack")
        if stack:
            stack.pop().__exit__(None, None, None)
        return original()

    patches.when_imported("torch._functorch.eager_transforms", attach)


_looking = threading.local()


@contextmanager
def plainly() -> Iterator[None]:
    """Run torchsan's own operators as they are, in the middle of a function that is being functionalised."""
    from torch._dispatch.python import suspend_functionalization

    _looking.now = True
    try:
        with suspend_functionalization():
            yield
    finally:
        _looking.now = False


def _forget_dispatches() -> None:
    """Drop what operators remember about the Functionalize key, so that it is looked up anew."""
    for overload in loaded_overloads():
        overload._uncache_dispatch(torch._C.DispatchKey.Functionalize)


def _maker(seen: Seen) -> Callable[[Any, Any], Any]:
    def make(overload: Any, final_key: Any) -> Any:
        def handler(*args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                return overload._op_dk(final_key, *args, **kwargs)

            plain = None if getattr(_looking, "now", False) else _unwrapped(args, kwargs)
            return run() if plain is None else seen(overload, *plain, run)

        hide_from_dynamo(handler)
        return handler

    return make


def _unwrapped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments without functional wrappers; None if what is inside is no ordinary tensor (the compiler's)."""
    ordinary = True

    def unwrap(t: torch.Tensor) -> torch.Tensor:
        nonlocal ordinary
        inner = torch._from_functional_tensor(t) if torch._is_functional_tensor(t) else t
        ordinary &= type(inner) in _PLAIN and not torch._C._functorch.is_functorch_wrapped_tensor(inner)
        return inner

    plain: Any = map_tensors(unwrap, (args, kwargs))
    return plain if ordinary else None
