"""The bytes of tensors: which span of its storage a tensor covers, read without copies and without dispatching."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import xxhash
from blake3 import blake3

from torchsan.store.metadata import Digest

CHUNK = 4 << 20
"""Bytes that are hashed, written or copied at a time: few enough that memory stays bounded."""
_SAMPLE = 4096


class Source(Protocol):
    """Bytes to store, which can be gone through more than once."""

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        ...

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Bytes of our own, which no one changes."""

    data: bytes

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return len(self.data)

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`."""
        return memoryview(self.data)[start:end]


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes `start` to `start + nbytes` of a storage, which it keeps alive."""

    storage: torch.UntypedStorage
    start: int
    nbytes: int

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`: the storage's own on the CPU, a copy of them elsewhere."""
        if start == end:
            return memoryview(b"")
        if self.storage.device.type == "cpu":
            return _memory(self.storage.data_ptr() + self.start + start, end - start)
        device_bytes = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        device_bytes.set_(self.storage, self.start + start, (end - start,), (1,))
        host = device_bytes.cpu()
        return memoryview(bytes(_memory(host.untyped_storage().data_ptr(), end - start)))

    def snapshot(self) -> Snapshot:
        """Return a copy, which stays as it is when the tensor changes."""
        if self.nbytes and self.storage.device.type == "cpu":
            return Snapshot(ctypes.string_at(self.storage.data_ptr() + self.start, self.nbytes))
        return Snapshot(b"".join(chunks(self)))


def _memory(address: int, nbytes: int) -> memoryview:
    # Not through numpy or torch: neither knows all dtypes, and tensor operations would go through active modes.
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")


def storage_view(storage: torch.UntypedStorage) -> memoryview:
    """Return the writable memory of a CPU storage; the caller keeps `storage` alive."""
    return _memory(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else memoryview(bytearray())


def chunks(source: Source, size: int = CHUNK) -> Iterator[memoryview]:
    """Yield the bytes of `source` in order, at most `size` at a time."""
    for start in range(0, source.nbytes, size):
        yield source.read(start, min(start + size, source.nbytes))


def digest_of(source: Source) -> Digest:
    """Return the content address of `source`."""
    if isinstance(source, Snapshot) or (isinstance(source, Span) and source.storage.device.type == "cpu"):
        return digest_bytes(source.read(0, source.nbytes))
    hasher = blake3(max_threads=blake3.AUTO)
    for chunk in chunks(source):
        hasher.update(chunk)
    return Digest(hasher.hexdigest())


def digest_bytes(data: memoryview | bytes) -> Digest:
    """Return the content address of `data`."""
    threads = blake3.AUTO if len(data) > CHUNK // 8 else 1
    return Digest(blake3(data, max_threads=threads).hexdigest())


def probe_of(source: Source) -> str:
    """Return a hash of three samples of `source`: equal contents have equal probes, and different ones mostly not."""
    hasher = xxhash.xxh3_64()
    for start in (0, source.nbytes // 2, max(0, source.nbytes - _SAMPLE)):
        hasher.update(source.read(start, min(start + _SAMPLE, source.nbytes)))
    return hasher.hexdigest()
