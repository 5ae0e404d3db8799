"""Calls of what `torch.compile` returned, from outside: seen as the program makes them, and run eagerly instead."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torchsan.torch_internals.compile_stages import Idle
from torchsan.torch_internals.patches import Patches, missing

if TYPE_CHECKING:
    import torch


class CallWatcher(Protocol):
    """Looks at the outermost calls of one compiled function."""

    @property
    def attention(self) -> Idle:
        """Which calls it looks at."""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the compiled function for the program, and return its result."""


Watcher = Callable[[Callable[..., Any], Callable[..., Any]], CallWatcher]
"""Given the user's function and the compiled one, makes who looks at its calls."""

_inside = threading.local()


@contextmanager
def observe_compiled_calls(watcher: Watcher, failed: Callable[[Exception], None]) -> Iterator[None]:
    """Let a watcher make each outermost call of a function that is given to `torch.compile` inside.

    Afterwards such a function is called as it is. May be entered before torch is imported, and does not import it.
    """
    patches = Patches(failed)
    watching = [True]

    def optimize(original: Callable[..., Any], context: Any, fn: Any) -> Any:
        compiled = original(context, fn)
        if not isinstance(compiled, types.FunctionType) or missing("stages"):
            return compiled  # A module is compiled by its `__call__`, a class by its methods: they come here, too.
        return _observed(compiled, watcher, watching)

    try:
        patches.wrap("torch._dynamo.eval_frame", "OptimizeContext.__call__", optimize)
        yield
    finally:
        patches.restore()
        watching.clear()


def _observed(compiled: Callable[..., Any], watcher: Watcher, watching: list[bool]) -> Callable[..., Any]:
    from torchsan.torch_internals.dispatch import hide_from_dynamo

    watch = watcher(_users_function(compiled), compiled)
    attention = watch.attention

    @functools.wraps(compiled)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if attention.idle:
            attention.idle -= 1
            return compiled(*args, **kwargs)
        if not watching or getattr(_inside, "call", False) or _is_traced():
            return compiled(*args, **kwargs)
        _inside.call = True
        try:
            return watch(args, kwargs)
        finally:
            _inside.call = False

    # By this Dynamo tells its own wrapper from a copy of its attributes.
    observed._torchdynamo_wrapper_id = id(observed)  # type: ignore[attr-defined]  # as above
    hide_from_dynamo(observed)
    return observed


def _users_function(compiled: Any) -> Callable[..., Any]:
    """What the user gave to `torch.compile`, without the frame that Dynamo puts around what has none of its own."""
    fn: Callable[..., Any] = compiled._torchdynamo_orig_callable
    code = getattr(fn, "__code__", None)
    around = code is not None and Path(code.co_filename).name == "external_utils.py"
    inner: Callable[..., Any] = getattr(fn, "__wrapped__", fn)
    return inner if around else fn


def _is_traced() -> bool:
    """Whether the call is part of what somebody compiles, exports or transforms."""
    import torch

    return (
        torch.compiler.is_compiling()
        or torch._guards.TracingContext.try_get() is not None
        or torch._C._functorch.maybe_current_level() is not None
    )


@contextmanager
def running_eagerly() -> Iterator[None]:
    """In a forked child: let compiled functions run as Python, on one thread, unseen by torchsan."""
    import torch

    from torchsan.torch_internals.dispatch import remove_own_modes

    # A parallel loop would wait for threads that the parent has.
    torch.set_num_threads(1)
    remove_own_modes()
    with torch.compiler.set_stance("force_eager"):
        yield


def unwrapped(t: torch.Tensor) -> bool:
    """Whether a tensor is plain: its elements lie in memory that can be read."""
    import torch

    if type(t) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(t, torch.nn.Buffer):
        return False
    if t.layout is not torch.strided or t.is_quantized or t.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(t)


def has_hooks(t: torch.Tensor) -> bool:
    """Whether hooks for its gradient are registered on a tensor."""
    return bool(t._backward_hooks)


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Inside a backward: call `function` when it is over."""
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(function)
