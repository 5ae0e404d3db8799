"""The contents of buffers, followed by a fast hash from their writer to their readers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
import xxhash

from torchsan.checks.memory.guards import span_bytes
from torchsan.torch_internals.storages import StorageRef

__all__ = ["Content", "read_content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a variable held when it was last looked at. `pointer` is None where its elements do not lie together.

    `since` and `seen` count launches: when it was written, and when it last was as it should be.
    """

    digest: int
    storage: StorageRef
    pointer: int | None
    nbytes: int
    since: int
    seen: int

    def still(self) -> bool:
        """Whether the memory holds the same; only for elements that lie together in a storage that lives."""
        return self.pointer is None or self.storage.dead or _hash(self.pointer, self.nbytes) == self.digest


def read_content(tensor: torch.Tensor, storage: StorageRef, since: int, seen: int) -> Content | None:
    """Look at a tensor; None for one that is not plain memory of this machine."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.numel() == 0:
        return None
    nbytes = tensor.numel() * tensor.element_size()
    together = span_bytes(tensor) == nbytes
    memory = tensor if together else tensor.contiguous()
    return Content(
        digest=_hash(memory.data_ptr(), nbytes),
        storage=storage,
        pointer=memory.data_ptr() if together else None,
        nbytes=nbytes,
        since=since,
        seen=seen,
    )


def _hash(pointer: int, nbytes: int) -> int:
    return xxhash.xxh3_64_intdigest((ctypes.c_char * nbytes).from_address(pointer))
