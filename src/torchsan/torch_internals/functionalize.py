"""Operators at the Functionalize key: what `torch.func.functionalize` calls, before and after it is functionalised.

PyTorch's own hook for this is used, but with our handler in it, and only while a function is being functionalised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchsan.torch_internals.dispatch import hide_from_dynamo
from torchsan.torch_internals.operators import loaded_overloads
from torchsan.torch_internals.seams import Patches

Seen = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
"""Given an overload, its arguments without their wrappers and how to run it, runs it and returns its result."""


def observe_functionalize(patches: Patches, seen: Seen) -> None:
    """Call `seen` for each operator that is functionalised eagerly, until the patches are restored."""
    guards = threading.local()

    def attach(transforms: Any) -> None:
        import torch._dispatch.python as python_dispatch

        patches.on_restore(_forget_dispatches)
        patches.replace(python_dispatch, "CROSSREF_FUNCTIONALIZE", lambda _original: True)
        patches.replace(python_dispatch, "make_crossref_functionalize", lambda _original: _maker(seen))
        _forget_dispatches()
        patches.replace(transforms, "_func_increment_nesting", enter)
        patches.replace(transforms, "_func_decrement_nesting", leave)

    def enter(original: Callable[..., Any]) -> Callable[..., Any]:
        def increment(reapply_views: Any) -> Any:
            from torch._dispatch.python import enable_python_dispatcher

            level = original(reapply_views)
            guard: Any = enable_python_dispatcher()
            guard.__enter__()
            vars(guards).setdefault("stack", []).append(guard)
            return level

        return increment

    def leave(original: Callable[..., Any]) -> Callable[..., Any]:
        def decrement() -> Any:
            stack = vars(guards).get("stack")
            if stack:
                stack.pop().__exit__(None, None, None)
            return original()

        return decrement

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
    import torch

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
    import torch
    from torch.utils import _pytree as pytree

    ordinary = True

    def unwrap(t: torch.Tensor) -> torch.Tensor:
        nonlocal ordinary
        inner = torch._from_functional_tensor(t) if torch._is_functional_tensor(t) else t
        ordinary &= type(inner) in (
            torch.Tensor,
            torch.nn.Parameter,
        ) and not torch._C._functorch.is_functorch_wrapped_tensor(inner)
        return inner

    plain: Any = pytree.tree_map_only(torch.Tensor, unwrap, (args, kwargs))
    return plain if ordinary else None
