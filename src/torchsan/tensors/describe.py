"""What a tensor says of itself, without a look at its elements, and unseen by the user's own hooks on torch."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import torch
from torch.overrides import has_torch_function

from torchsan.records.tensor import TensorMeta

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

_DYNAMO = "torch._dynamo"


def undisturbed(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` such that neither a `__torch_function__`, of a subclass or an active mode, nor Dynamo sees it.

    Dispatch modes and grad mode need no guard: the functions of this package read a tensor's metadata and memory, and
    run no operator on CPU tensors.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        # With a mode active the answer is yes for any argument, tensor or not.
        if has_torch_function((None,)):
            return _in_a_thread(lambda: function(*args, **kwargs))
        return _without_subclasses(lambda: function(*args, **kwargs))

    uncompiled: Callable[P, T] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal uncompiled
        # To disable Dynamo is to import it, which takes seconds that a program without it need not spend.
        if _DYNAMO not in sys.modules:
            return run(*args, **kwargs)
        if uncompiled is None:
            uncompiled = torch.compiler.disable(run)  # type: ignore[no-untyped-call]  # torch has no type for it
        return uncompiled(*args, **kwargs)

    return call


def _without_subclasses(call: Callable[[], T]) -> T:
    """Run `call` as torch runs the default `__torch_function__`: with the overrides of subclasses off."""
    result: T = torch.Tensor.__torch_function__(call, (), (), {})  # type: ignore[no-untyped-call]  # torch has no type for it
    return result


def _in_a_thread(call: Callable[[], T]) -> T:
    """Run `call` in a new thread, where no mode is active: the stack of modes belongs to the thread."""
    results: list[T] = []
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


@undisturbed
def describe(t: torch.Tensor) -> TensorMeta:
    """Return the metadata of `t`, whatever its layout or class. Never reads elements, never raises for a tensor.

    >>> import torch, torchsan
    >>> meta = torchsan.describe(torch.zeros(2, 3).t())
    >>> meta.shape, meta.stride, meta.dtype
    ((3, 2), (1, 3), 'float32')
    """
    kind = kind_of(t)
    strided = kind not in ("sparse", "opaque", "nested")
    return TensorMeta(
        dtype=str(t.dtype).removeprefix("torch."),
        shape=_shape(t),
        stride=_said(lambda: _plain(t.stride()), ()) if strided else (),
        offset=_plain([_said(lambda: t.storage_offset(), 0)])[0] if strided else 0,
        device=str(t.device),
        layout=str(t.layout).removeprefix("torch."),
        requires_grad=t.requires_grad,
        conj=_said(t.is_conj, False),
        neg=_said(t.is_neg, False),
        kind=kind,
    )


def kind_of(t: torch.Tensor) -> str:
    """Return the `kind` of TensorMeta that `t` is."""
    if is_fake(t):  # First, since a fake tensor claims any layout and device.
        return "fake"
    if t.is_nested:
        return "nested"
    if t.layout is not torch.strided:
        return "sparse" if "sparse" in str(t.layout) else "opaque"
    if t.is_quantized:
        return "quantized"
    return "meta" if t.device.type == "meta" else "dense"


def is_fake(t: torch.Tensor) -> bool:
    """Whether `t` is a tensor of PyTorch's without data that claims to have some."""
    # By name, since the class lives in a private module.
    if any(c.__name__ == "FakeTensor" and c.__module__.startswith("torch.") for c in type(t).__mro__):
        return True
    # Since 2.14 there are some made in C++, whose class is plain `Tensor`: what they claim to be on is not where
    # their storage is.
    storage = _said(lambda: t.untyped_storage().device.type, t.device.type)
    return storage == "meta" != t.device.type


def _shape(t: torch.Tensor) -> tuple[int | None, ...]:
    """Return the sizes; where the whole shape cannot be asked for (nested), each by itself."""
    whole = _said(lambda: _plain(t.shape), None)
    if whole is not None:
        return whole
    return tuple(_said(lambda d=d: _plain([t.size(d)])[0], None) for d in range(t.dim()))  # type: ignore[misc]  # mypy cannot infer a lambda with a default


def _plain(sizes: Iterable[object]) -> tuple[int | None, ...]:
    """Return `sizes` with None for what is no plain int: asking a symbol for its value would add a guard."""
    return tuple(size if type(size) is int else None for size in sizes)


def _said(ask: Callable[[], T], otherwise: U) -> T | U:
    """Return what `ask` returns, or `otherwise` where this kind of tensor has no answer."""
    try:
        return ask()
    except (RuntimeError, NotImplementedError):
        return otherwise
