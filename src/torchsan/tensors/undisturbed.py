"""Calls that the user's own hooks on torch do not see."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.overrides import has_torch_function

P = ParamSpec("P")
R = TypeVar("R")

_DYNAMO = "torch._dynamo"


def undisturbed(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` such that neither a `__torch_function__`, of a subclass or an active mode, nor Dynamo sees it.

    Dispatch modes and grad mode need no guard: the functions of this package read a tensor's metadata and memory, and
    run no operator on CPU tensors.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # With a mode active the answer is yes for any argument, tensor or not.
        if has_torch_function((None,)):
            return _in_a_thread(lambda: function(*args, **kwargs))
        return _without_subclasses(lambda: function(*args, **kwargs))

    uncompiled: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal uncompiled
        # To disable Dynamo is to import it, which takes seconds that a program without it need not spend.
        if _DYNAMO not in sys.modules:
            return run(*args, **kwargs)
        if uncompiled is None:
            uncompiled = torch.compiler.disable(run)  # type: ignore[no-untyped-call]  # torch has no type for it
        return uncompiled(*args, **kwargs)

    return call


def _without_subclasses(call: Callable[[], R]) -> R:
    """Run `call` as torch runs the default `__torch_function__`: with the overrides of subclasses off."""
    result: R = torch.Tensor.__torch_function__(call, (), (), {})  # type: ignore[no-untyped-call]  # torch has no type for it
    return result


def _in_a_thread(call: Callable[[], R]) -> R:
    """Run `call` in a new thread, where no mode is active: the stack of modes belongs to the thread."""
    results: list[R] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(_without_subclasses(call))
        except BaseException as e:  # noqa: BLE001  # raised again below, in the caller's thread
            errors.append(e)

    thread = threading.Thread(target=work, name="torchsan-undisturbed")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
