"""Computes with the user's own code without the program noticing: in a forked child that leaves no trace.

An operator that is not PyTorch's own may print, write files, count its calls or draw from a generator of its own. What
torchsan computes with it once more than the program does is computed here.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from torchsan.reference.isolation import Refused, fork_isolated, inside, obstacle
from torchsan.reference.wire import NoAnswer, ask, send
from torchsan.torch_internals.compiled_calls import running_eagerly
from torchsan.torch_internals.operators import has_storage

T = TypeVar("T")

_LATE = 2
"""How many children may take too long before no more are made: the program would wait for each."""
_SECONDS = 60
"""Then a child that nobody waits for any more ends."""
_KEPT = (ArithmeticError, AssertionError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What an operator may raise, and is told by its type."""

_late = 0
_own_process: int | None = None


class Unavailable(Exception):
    """Something cannot be computed again; the message says what and why."""


class NoChild(Unavailable):
    """It cannot be computed again, because no child can be made."""


def in_own_process() -> None:
    """Say that this process is torchsan's own: what the user's code does in it, no program notices."""
    global _own_process
    _own_process = os.getpid()


def aside(compute: Callable[[], T], *, known: Iterable[Any] = (), written: Iterable[torch.Tensor] = ()) -> T:
    """Return what `compute` returns in a forked child, or raise what it raises.

    Objects that are `known`, such as nodes of a graph, are themselves in what is returned. What `compute` does to the
    memory of the tensors that are `written` is done to it here, too; nothing else is. Raise Unavailable if it would
    reach out of the child, takes too long, or no child can be made. In such a child it is simply computed.
    """
    if inside() or _own_process == os.getpid():
        return compute()
    reason = _obstacle()
    if reason is not None:
        raise NoChild(f"what is not PyTorch's own is not computed again: {reason}")
    tensors = [t for t in written if _is_plain(t)]
    objects = [*tensors, *known]
    try:
        (end,) = fork_isolated(lambda end: _answer(end, compute, tensors, objects))
    except OSError as e:
        raise NoChild(f"what is not PyTorch's own is not computed again: no process could be made: {e}") from e
    with end:
        result, changed = _wait(end, objects)
    with torch.no_grad():
        for i, (data, *layout) in changed.items():
            _leave(tensors[i], data, *layout)
    answer: T = result
    return answer


def _obstacle() -> str | None:
    if _late >= _LATE:
        return f"{_late} of its processes took too long"
    return obstacle()


def _wait(end: socket.socket, objects: Sequence[Any]) -> Any:
    global _late
    try:
        return ask(end, known=objects)
    except NoAnswer as e:
        _late += e.late
        raise Unavailable(f"computed again in a process of its own, {e}") from e


def _answer(end: socket.socket, compute: Callable[[], Any], tensors: list[torch.Tensor], objects: list[Any]) -> None:
    """In the child: compute, and send what came of it."""
    signal.alarm(_SECONDS)
    try:
        with running_eagerly():
            before = [(_whole(t).clone(), *_layout(t)) for t in tensors]
            result = compute()
            # Copies: the storages are known, and what is known is not sent.
            now = [(_whole(t).clone(), *_layout(t)) for t in tensors]
            changed = {i: t for i, t in enumerate(now) if t[1:] != before[i][1:] or not torch.equal(t[0], before[i][0])}
            send(end, (result, changed), objects)
    except Refused as e:
        send(end, Unavailable(f"what is not PyTorch's own is not computed again: {e}"))
    except Unavailable as e:
        send(end, e)
    except Exception as e:  # noqa: BLE001  # raised again where it was to be computed
        kind = next((k for k in type(e).__mro__ if k in _KEPT), None)
        send(end, kind(str(e)) if kind is type(e) else (kind or RuntimeError)(f"{type(e).__name__}: {e}"))


def _is_plain(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and has_storage(t) and t.device.type == "cpu"


def _layout(t: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], int]:
    return t.shape, t.stride(), int(t.storage_offset())


def _leave(t: torch.Tensor, data: torch.Tensor, shape: Any, stride: Any, offset: int) -> None:
    """Let the tensor be as its like in the child."""
    storage = t.untyped_storage()
    if storage.nbytes() != data.nbytes:
        storage.resize_(data.nbytes)
    _whole(t).copy_(data)
    if _layout(t) != (shape, stride, offset):
        t.set_(storage, offset, shape, stride)


def _whole(t: torch.Tensor) -> torch.Tensor:
    """All the bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
