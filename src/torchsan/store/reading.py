"""From records to tensors: fetches blobs, verifies them, and lays tensors over them."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import UntypedStorage

from torchsan.errors import StoreError
from torchsan.store.backend import Backend, aside_key, blob_key, pack_key
from torchsan.store.metadata import DTYPES, BlobRef, DenseRecord, Digest, SparseRecord, TensorRecord
from torchsan.store.planning import digest_bytes, storage_view

Pool: TypeAlias = MutableMapping[tuple[Digest, str], UntypedStorage]
"""Storages to share, by content and device."""


class Reader:
    """Fetches blobs into storages. `shared` holds those that someone still uses."""

    def __init__(self, backend: Backend, packed: Callable[[Digest], list[BlobRef]]) -> None:
        self._backend = backend
        self._packed = packed
        self._verified: dict[Digest, object] = {}
        self.shared: Pool = weakref.WeakValueDictionary()

    def storage(self, name: str, blob: BlobRef, *, device: torch.device, pool: Pool, verify: bool) -> UntypedStorage:
        """Return a storage with the bytes of `blob`, one of `pool` if it is there, and leave it in `pool`.

        Raise StoreError if the bytes are not there or not the right ones.
        """
        key = (blob.digest, str(device))
        storage = pool.get(key)
        if storage is not None and (not verify or blob.digest in self._verified):
            return storage
        storage = self._fetch(name, blob, verify=verify)
        if device.type != "cpu":
            host = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (blob.nbytes,), (1,))
            storage = host.to(device).untyped_storage()
        return pool.setdefault(key, storage)

    def verify(self, name: str, blob: BlobRef) -> None:
        """Raise StoreError unless the bytes of `blob` are there and right."""
        self._fetch(name, blob, verify=True)

    def _fetch(self, name: str, blob: BlobRef, *, verify: bool) -> UntypedStorage:
        if blob.nbytes == 0:
            return UntypedStorage(0)  # type: ignore[no-untyped-call]  # torch has no types here
        problem = "is missing"
        places = [(place, pack_key(place.pack)) for place in self._packed(blob.digest) if place.pack and place != blob]
        places.insert(0, (blob, pack_key(blob.pack) if blob.pack else blob_key(blob.digest)))
        if blob.pack is None:
            # Where a collection that was killed may have left it.
            places.append((blob, aside_key(blob.digest)))
        for place, key in places:
            try:
                found = self._fetch_from(place, key, verify=verify)
            except FileNotFoundError:
                continue
            if isinstance(found, str):
                problem = found
                continue
            return found
        raise StoreError(
            f"the data of tensor {name!r} (blob {blob.digest[:16]}…, {blob.nbytes} bytes) in {self._backend.url} "
            f"{problem}; put the tensor again to mend it, or read it with verify=False if it is only altered",
            slug="corrupt-blob",
        )

    def _fetch_from(self, blob: BlobRef, key: str, *, verify: bool) -> UntypedStorage | str:
        """Return the storage, or what is wrong with the bytes there."""
        if blob.pack is None and (mapped := self._backend.map(key, blob.nbytes)) is not None:
            signature = mapped.signature
            storage = torch.frombuffer(mapped.memory, dtype=torch.uint8).untyped_storage()
        else:
            # The size is asked for before memory is: metadata may claim any.
            size = self._backend.size(key)
            if size is None:
                raise FileNotFoundError(key)
            if blob.at + blob.nbytes > size or (blob.pack is None and size != blob.nbytes):
                return self._damaged(blob, "is truncated")
            signature = (key, blob.at)
            storage = UntypedStorage(blob.nbytes)  # type: ignore[no-untyped-call]  # torch has no types here
            if self._backend.read_into(key, blob.at, storage_view(storage)) != blob.nbytes:
                return self._damaged(blob, "is truncated")
        if verify and self._verified.get(blob.digest) != signature:
            if digest_bytes(storage_view(storage)) != blob.digest:
                return self._damaged(blob, "is corrupt: its bytes do not match its digest")
            self._verified[blob.digest] = signature
        return storage

    def _damaged(self, blob: BlobRef, problem: str) -> str:
        self._verified.pop(blob.digest, None)
        if blob.pack is None:
            self._backend.distrust(blob.digest)
        return problem


def load(
    reader: Reader, name: str, record: TensorRecord, *, device: torch.device | None, pool: Pool, verify: bool
) -> torch.Tensor:
    """Return the tensor that `record` describes, a leaf, on `device` or where it was when it was put."""
    if type(torch.empty(0, device="cpu")) is not torch.Tensor:
        raise StoreError(
            f"cannot read tensor {name!r} under a mode that makes tensors without data, such as FakeTensorMode; "
            "leave the mode first",
            slug="mode-active",
        )
    where = _device(name, record.device, device)
    fetch = partial(reader.storage, name, device=where, pool=pool, verify=verify)
    # Tensors made in inference mode could not be given requires_grad.
    with torch.inference_mode(False), torch.no_grad():
        try:
            match record:
                case DenseRecord():
                    tensor = _dense(record, where, fetch)
                case SparseRecord():
                    tensor = _sparse(record, where, fetch)
            return tensor.requires_grad_() if record.requires_grad else tensor
        except RuntimeError as e:
            raise StoreError(
                f"the metadata of tensor {name!r} describe no tensor: {str(e).splitlines()[0]}",
                slug="malformed-metadata",
            ) from e


def _device(name: str, recorded: str, asked: torch.device | None) -> torch.device:
    try:
        device = torch.device(recorded) if asked is None else asked
        if device.type != "cpu":
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:
        why = f"was put from device {recorded}" if asked is None else f"is wanted on device {asked}"
        raise StoreError(
            f"tensor {name!r} {why}, which is not here; read it with device='cpu'", slug="device-unavailable"
        ) from e
    if device.type == "meta":
        raise StoreError(f"tensor {name!r} on device meta would have no data; use describe", slug="no-data")
    return device


def _dense(record: DenseRecord, device: torch.device, fetch: Callable[[BlobRef], UntypedStorage]) -> torch.Tensor:
    tensor = torch.empty(0, dtype=DTYPES[record.dtype], device=device)
    tensor.set_(fetch(record.blob), record.start, record.shape, record.stride)
    if record.conj:
        tensor = tensor.conj()
    return torch.ops.aten._neg_view.default(tensor) if record.neg else tensor


def _sparse(record: SparseRecord, device: torch.device, fetch: Callable[[BlobRef], UntypedStorage]) -> torch.Tensor:
    parts = [_dense(part, device, fetch) for part in record.parts.values()]
    # Indices are checked: those of a damaged store could point anywhere.
    make: Any = torch.sparse_coo_tensor  # torch's stubs know one of its signatures only
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse invariant checks")  # PyTorch 2.12 says that they are not made.
        if record.layout == "sparse_coo":
            tensor = make(*parts, record.shape, check_invariants=True, is_coalesced=record.coalesced or None)
        else:
            make = torch.sparse_compressed_tensor
            tensor = make(*parts, record.shape, layout=getattr(torch, record.layout), check_invariants=True)
    assert isinstance(tensor, torch.Tensor), "the constructors make tensors"
    return tensor
