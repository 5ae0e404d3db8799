"""The tensors behind watched values: whether two are the same without reading them, and their elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsan.errors import StoreError, TorchsanError
from torchsan.recording import Reader
from torchsan.records import TensorSummary, Watched

if TYPE_CHECKING:
    import torch

    from torchsan.store import Store
    from torchsan.store.metadata import DenseRecord, TensorRecord

__all__ = ["Contents"]


class Contents:
    """The tensors that one recording keeps: those in its store, and those whose few elements are in its summaries."""

    def __init__(self, recording: Reader) -> None:
        self._recording = recording
        self._store: Store | None = None
        self._records: dict[str, TensorRecord | None] = {}
        self.damaged: dict[str, str] = {}
        """Tensors that cannot be read, and why."""

    def address(self, watched: Watched) -> tuple[object, ...] | None:
        """What the elements are known by: equal for equal tensors. None if the tensor was not saved."""
        record = self._record(watched.stored) if watched.stored is not None else None
        if record is None:
            return None
        from torchsan.store.metadata import DenseRecord, SparseRecord

        match record:
            case DenseRecord():
                return _layout(record)
            case SparseRecord():
                return (record.coalesced, *(_layout(part) for part in record.parts.values()))

    def tensor(self, watched: Watched) -> torch.Tensor | None:
        """The elements, on the CPU; None if they are not in the recording or cannot be read."""
        if watched.stored is not None and watched.stored not in self.damaged:
            try:
                return self._open().get(watched.stored, device="cpu").detach()
            except TorchsanError as e:
                self.damaged[watched.stored] = str(e)
        return _few(watched.summary) if watched.summary is not None else None

    def close(self) -> None:
        """Let go of the files."""
        if self._store is not None:
            self._store.close()

    def _record(self, name: str) -> TensorRecord | None:
        if name not in self._records:
            try:
                self._records[name] = self._open().record(name)
            except TorchsanError as e:
                self._records[name] = None
                self.damaged[name] = str(e)
        return self._records[name]

    def _open(self) -> Store:
        from torchsan.store import Store

        if self._store is None:
            # A link could lead out of the recording.
            if self._recording.tensors.is_symlink():
                raise StoreError(f"{self._recording.tensors} is a link", slug="no-store")
            self._store = Store(self._recording.store)
        return self._store


def _layout(r: DenseRecord) -> tuple[object, ...]:
    return (r.blob.digest, r.dtype, r.shape, r.stride, r.start, r.conj, r.neg)


def _few(summary: TensorSummary) -> torch.Tensor | None:
    """A tensor from the elements that its summary holds."""
    import torch

    dtype = getattr(torch, summary.meta.dtype, None)
    if summary.values is None or summary.reason is not None or not isinstance(dtype, torch.dtype):
        return None
    through = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
    try:
        shape = [n for n in summary.meta.shape if n is not None]
        return torch.tensor(summary.values, dtype=through).to(dtype).reshape(shape)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return None
