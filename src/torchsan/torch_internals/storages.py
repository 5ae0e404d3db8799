"""Storages as things that live and die: their identity, and whether one is still alive, without keeping it so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["StorageRef", "storage_key"]


def storage_key(tensor: torch.Tensor) -> int:
    """What tells the tensor's storage from every other one that is alive, or that a StorageRef refers to."""
    return int(tensor.untyped_storage()._cdata)


class StorageRef:
    """Refers to a tensor's storage and does not keep its memory. No other storage gets its key while this exists."""

    __slots__ = ("_ref", "key")

    def __init__(self, tensor: torch.Tensor) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        self.key = int(storage._cdata)
        self._ref = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch leaves it without types

    @property
    def dead(self) -> bool:
        """Whether nothing holds the storage any more, in Python or in C++."""
        return bool(self._ref.expired())  # type: ignore[no-untyped-call]  # torch leaves it without types
