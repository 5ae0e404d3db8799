"""How a forked child and its parent speak: pickles with the bytes of tensors in them, over a socket.

What is received was sent by a fork of this very process.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

import torch

_PATIENCE = 30.0
"""Seconds that the program waits for a child."""


class NoAnswer(Exception):
    """The child did not answer; the message says why."""

    def __init__(self, why: str, *, late: bool = False) -> None:
        """`late` if it might have, with more time."""
        super().__init__(why)
        self.late = late


class _Pickler(pickle.Pickler):
    """Sends the bytes of tensors as they are: `torch.save` would take as long as the call."""

    def __init__(self, stream: io.BytesIO, known: Sequence[Any], storages: dict[int, int]) -> None:
        super().__init__(stream, protocol=5)
        self._known = {id(each): i for i, each in enumerate(known)}
        self._storages = storages

    def persistent_id(self, obj: Any) -> int | None:
        return self._known.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        with torch.no_grad():
            t = obj.detach().resolve_conj().resolve_neg()
            layout = (t.dtype, tuple(t.shape), t.stride())
            place = self._storages.get(t.untyped_storage().data_ptr()) if t.numel() else None
            if place is not None:
                return _view, (_Place(place), *layout, t.storage_offset(), obj.requires_grad)
            span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
            data = t.as_strided((span,), (1,)).view(torch.uint8).numpy().tobytes() if span else b""
        return _tensor, (pickle.PickleBuffer(data), *layout, obj.requires_grad)


class _Place:
    """Stands for a storage that both sides have: that of the tensor with this number among those known."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, known: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known

    def persistent_load(self, pid: Any) -> Any:
        return self._known[pid]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, "_view"):
            return self._view
        return super().find_class(module, name)

    def _view(self, place: _Place, dtype: torch.dtype, shape: Any, stride: Any, offset: int, grad: bool) -> Any:
        storage = self._known[place.number].untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride).requires_grad_(grad)


def _view(*_: Any) -> None:
    """Named in messages; `_Unpickler` has what it stands for."""


def _tensor(data: Any, dtype: torch.dtype, shape: Any, stride: Any, grad: bool) -> torch.Tensor:
    if not len(memoryview(data)):
        return torch.empty_strided(shape, stride, dtype=dtype).requires_grad_(grad)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return flat.as_strided(shape, stride).requires_grad_(grad)


def send(end: socket.socket, message: Any, known: Sequence[Any] = ()) -> None:
    """Send a message. Of what is `known` to the other side, which is as it was there before the fork, only the place.

    So the identity of objects is kept, and that tensors lie in the storage of a known one.
    """
    stream = io.BytesIO()
    tensors = [(t.untyped_storage().data_ptr(), i) for i, t in enumerate(known) if isinstance(t, torch.Tensor)]
    _Pickler(stream, known, dict(tensors)).dump(message)
    data = stream.getbuffer()
    end.sendall(struct.pack("<Q", len(data)))
    end.sendall(data)


def receive(end: socket.socket, known: Sequence[Any] = ()) -> Any:
    """The next message; None if there will be none."""
    header = _read(end, 8)
    if header is None:
        return None
    return _Unpickler(_read(end, struct.unpack("<Q", header)[0]) or b"", known).load()


def ask(end: socket.socket, question: Any = None, known: Sequence[Any] = ()) -> Any:
    """Send a question, if there is one, and return the answer; raise it if it is an exception. Raise NoAnswer."""
    try:
        end.settimeout(_PATIENCE)
        if question is not None:
            send(end, question)
        answer = receive(end, known)
    except TimeoutError:
        end.close()
        raise NoAnswer(f"it did not come to an end within {_PATIENCE:.0f} seconds", late=True) from None
    except (OSError, EOFError, pickle.PickleError) as e:
        raise NoAnswer(f"its process ended ({type(e).__name__})") from e
    if answer is None:
        raise NoAnswer("its process ended: killed, or out of memory")
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(end: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = end.recv_into(view[done:])
        if not got:
            return None
        done += got
    return bytes(data)
