"""From tensors to records: which spans of which storages to keep, and what to say about them. Nothing is copied."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
import xxhash
from blake3 import blake3

from torchsan.errors import StoreError
from torchsan.store.metadata import (
    NAMES,
    SPARSE_PARTS,
    BlobRef,
    DenseRecord,
    Digest,
    SparseRecord,
    TensorRecord,
    check_name,
)
from torchsan.tensors.describe import is_fake

CHUNK = 4 << 20
"""Bytes that are hashed, written or copied at a time: few enough that memory stays bounded."""
_SAMPLE = 4096


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


Source: TypeAlias = Snapshot | Span
"""Bytes to store, which can be gone through more than once."""


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
    if isinstance(source, Snapshot) or source.storage.device.type == "cpu":
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


_LAYOUTS = {getattr(torch, layout): layout for layout in SPARSE_PARTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Tensors to put together, and the bytes they need. The `at` of a record's blob is the number of its source."""

    tensors: dict[str, TensorRecord]
    sources: list[Span] | list[Snapshot]

    @property
    def nbytes(self) -> int:
        """The bytes of all sources."""
        return sum(source.nbytes for source in self.sources)

    def snapshot(self) -> Plan:
        """Return the plan with copies of the bytes, which later changes of the tensors do not reach."""
        return replace(self, sources=[s.snapshot() if isinstance(s, Span) else s for s in self.sources])

    def records(self, blobs: list[BlobRef]) -> Iterator[tuple[str, TensorRecord]]:
        """Yield names and records, with `blobs` in the place of the sources."""
        for name, record in self.tensors.items():
            yield name, record.placed(lambda blob: blobs[blob.at])


@dataclass(slots=True)
class _Piece:
    """A strided tensor and the bytes of its storage that it reaches; later, the source that holds them."""

    tensor: torch.Tensor
    storage: torch.UntypedStorage
    start: int
    end: int
    source: int = 0
    source_start: int = 0


def plan(tensors: Mapping[str, torch.Tensor]) -> Plan:
    """Plan to put `tensors`. Those that share a storage share one source: the span that covers them all."""
    pieces = {name: _pieces(name, tensor) for name, tensor in tensors.items()}
    sources = _sources([piece for parts in pieces.values() for piece in parts.values()])
    return Plan(tensors={name: _describe(tensors[name], parts) for name, parts in pieces.items()}, sources=sources)


def _pieces(name: str, tensor: torch.Tensor) -> dict[str, _Piece]:
    """Return the tensor itself, or the components of a sparse one by name."""
    _refuse(check_name(name), tensor)
    parts = _components(tensor) if tensor.layout in _LAYOUTS else {"": tensor}
    return {part: _Piece(value, *_span(name, value)) for part, value in parts.items()}


def _sources(pieces: list[_Piece]) -> list[Span]:
    """Return the spans that cover `pieces`, one a storage, and note in each piece which one it got."""
    groups: dict[object, list[_Piece]] = {}
    for piece in pieces:
        # Storages without bytes all have the same address; nothing is shared by sharing them.
        storage = piece.storage
        groups.setdefault((str(storage.device), storage.data_ptr(), storage.nbytes()), []).append(piece)
    sources: list[Span] = []
    for members in groups.values():
        start, end = _cover(members)
        for piece in members:
            piece.source, piece.source_start = len(sources), start
        sources.append(Span(members[0].storage, start, end - start))
    return sources


def _cover(members: list[_Piece]) -> tuple[int, int]:
    """Return the bytes that cover all `members` of one storage, cut so that each starts at a whole element."""
    real = [piece for piece in members if piece.end > piece.start] or members[:1]
    start, end = min(piece.start for piece in real), max(piece.end for piece in real)
    if len(real) > 1:
        start -= start % max(piece.tensor.element_size() for piece in real)
    return start, end


def _span(name: str, tensor: torch.Tensor) -> tuple[torch.UntypedStorage, int, int]:
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (RuntimeError, NotImplementedError) as e:
        raise StoreError(
            f"tensor {name!r} has no storage to read: {str(e).splitlines()[0]}; put a plain tensor, "
            "outside torch.func transforms",
            slug="no-data",
        ) from e
    if not tensor.numel():
        return storage, 0, 0
    size = tensor.element_size()
    start = int(tensor.storage_offset())
    last = start
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (length - 1) * stride
    if (last + 1) * size > storage.nbytes():
        raise StoreError(
            f"tensor {name!r} needs {(last + 1) * size} bytes and its storage has {storage.nbytes()}: it was resized; "
            "put it while it has its data",
            slug="no-data",
        )
    return storage, start * size, (last + 1) * size


def _refuse(name: str, tensor: torch.Tensor) -> None:
    """Raise StoreError if `tensor` is of a kind that the store does not keep."""
    if not isinstance(tensor, torch.Tensor):
        raise StoreError(f"{name!r} is a {type(tensor).__name__}, not a tensor", slug="not-a-tensor")
    kind = type(tensor)
    if (fake := is_fake(tensor)) or tensor.is_meta:
        what = "fake" if fake else "meta"
        raise StoreError(f"tensor {name!r} is {what}: it has no data to store; put a real one", slug="no-data")
    if tensor.is_nested:
        raise StoreError(
            f"tensor {name!r} is nested; put its components, as in put_many(dict(enumerate(t.unbind())))",
            slug="unsupported-tensor",
        )
    if tensor.is_quantized or tensor.dtype not in NAMES:
        raise StoreError(
            f"tensor {name!r} is quantized ({tensor.dtype}); put t.int_repr() and its scale and zero point",
            slug="unsupported-tensor",
        )
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise StoreError(
            f"tensor {name!r} is a {kind.__name__}, a wrapper around other tensors; put those",
            slug="unsupported-tensor",
        )
    if tensor.layout is not torch.strided and tensor.layout not in _LAYOUTS:
        raise StoreError(
            f"tensor {name!r} has layout {tensor.layout}; put t.to_dense()",
            slug="unsupported-tensor",
        )


def _components(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    layout = _LAYOUTS[tensor.layout]
    bare = tensor.detach()
    if layout == "sparse_coo":
        # Not indices() and values(), which refuse tensors that were not coalesced.
        return {"indices": bare._indices(), "values": bare._values()}
    return {part: getattr(bare, part)() for part in SPARSE_PARTS[layout]}


def _describe(tensor: torch.Tensor, pieces: dict[str, _Piece]) -> TensorRecord:
    if tensor.layout not in _LAYOUTS:
        return _describe_piece(pieces[""])
    return SparseRecord(
        layout=_LAYOUTS[tensor.layout],
        dtype=NAMES[tensor.dtype],
        shape=tuple(tensor.shape),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        coalesced=tensor.layout is torch.sparse_coo and tensor.is_coalesced(),
        parts={part: _describe_piece(piece) for part, piece in pieces.items()},
    )


def _describe_piece(piece: _Piece) -> DenseRecord:
    tensor = piece.tensor
    return DenseRecord(
        dtype=NAMES[tensor.dtype],
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        start=(piece.start - piece.source_start) // tensor.element_size() if tensor.numel() else 0,
        offset=int(tensor.storage_offset()),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
        blob=BlobRef(digest=Digest(""), nbytes=0, at=piece.source),
    )
