"""Removes what no name refers to, while others read and write; docs/explanation/store-format.md says why it is safe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from torchsan.errors import StoreError
from torchsan.store.backend import (
    PACK_ALIGNMENT,
    Backend,
    Progress,
    aside_key,
    blob_key,
    log_key,
    new_segment,
    pack_key,
)
from torchsan.store.index import Index, blobs_in
from torchsan.store.log import put_line
from torchsan.store.metadata import BlobRef, DenseRecord, Digest, SegmentId, SparseRecord, TensorRecord, from_json

_ATTEMPTS = 5
_SEGMENT_BYTES = 16 << 20

Live: TypeAlias = dict[str, tuple[int, TensorRecord]]
"""Names with the time and the record of their last put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a collection removed. `nbytes` counts blobs, packs and logs, less what was written to replace them."""

    blobs: int
    nbytes: int
    dropped: tuple[str, ...] = ()
    """Names that were given up because their data or metadata are damaged."""


def collect(backend: Backend, *, drop_damaged: bool, grace: float, progress: Progress | None) -> GcReport:
    """Collect the store. Raise StoreError, with nothing removed, if it is damaged and `drop_damaged` is not set."""
    for _ in range(_ATTEMPTS):
        try:
            return _collect(backend, drop_damaged=drop_damaged, grace=grace, progress=progress)
        except FileNotFoundError:
            continue  # another collection is at work; its result is in the logs
    raise StoreError(f"another collection is at work in {backend.url}; try again later", slug="store-busy")


def _collect(backend: Backend, *, drop_damaged: bool, grace: float, progress: Progress | None) -> GcReport:
    index = _read(backend)
    if index.damaged and not drop_damaged:
        raise StoreError(
            f"{backend.url} has damaged records in {log_key(next(iter(index.damaged)))}; "
            "see `torchsan store fsck`, then collect with --drop-damaged to give them up",
            slug="damaged-log",
        )
    _bring_back(backend, index)
    _live(backend, index, drop_damaged)
    segments = index.segments
    for segment in segments:
        backend.retire(segment)
    # Only now: what is appended to a retired log after this, its writer appends again elsewhere.
    index = _read(backend)
    live, dropped = _live(backend, index, drop_damaged)
    before = sum(backend.size(key) or 0 for segment in segments for key in _files(segment))
    after = _Compaction(backend, index, frozenset(segments)).run(live, progress)
    for segment in segments:
        for key in _files(segment):
            backend.remove(key)
    blobs, nbytes = _sweep(backend, {blob.digest for _, record in live.values() for blob in record.blobs})
    for key in backend.leftovers(grace):
        backend.remove(key)
    return GcReport(blobs=blobs, nbytes=max(0, nbytes + before - after), dropped=tuple(dropped))


def _read(backend: Backend) -> Index:
    index = Index(backend)
    index.refresh()
    return index


def _files(segment: SegmentId) -> tuple[str, str, str]:
    # The pack goes last: a log without its pack would be damage, a pack without its log is none.
    return log_key(segment, old=True), log_key(segment), pack_key(segment)


def _live(backend: Backend, index: Index, drop_damaged: bool) -> tuple[Live, list[str]]:
    """Return the records that can be read, and the names of the others."""
    live: Live = {}
    dropped = []
    for name in sorted(index.names()):
        known = index.find(name)
        assert known is not None, "names lists what find finds"
        try:
            record = from_json(name, known.tensor)
            for blob in record.blobs:
                _place(backend, index, name, blob)
        except StoreError:
            if not drop_damaged:
                raise
            dropped.append(name)
        else:
            live[name] = (known.time, record)
    return live, dropped


def _place(backend: Backend, index: Index, name: str, blob: BlobRef) -> BlobRef:
    """Return where the bytes of `blob` are, by size; whether they are right is for fsck to say."""
    for place in (blob, *index.packed(blob.digest)):
        key = blob_key(place.digest) if place.pack is None else pack_key(place.pack)
        if (backend.size(key) or 0) >= place.at + place.nbytes:
            return place
    raise StoreError(
        f"the data of tensor {name!r} in {backend.url} are missing; see `torchsan store fsck`, then put it again, "
        "delete it, or collect with --drop-damaged",
        slug="corrupt-blob",
    )


class _Compaction:
    """Writes live records, and the packed bytes they need, into new segments."""

    def __init__(self, backend: Backend, index: Index, retired: frozenset[SegmentId]) -> None:
        self._backend = backend
        self._index = index
        self._retired = retired
        self._moved: dict[Digest, BlobRef] = {}
        self._written = 0
        self._begin()

    def _begin(self) -> None:
        self._segment = new_segment()
        self._pack = bytearray()
        self._lines: list[bytes] = []

    def run(self, live: Live, progress: Progress | None) -> int:
        """Write all of `live`; return how many bytes that took."""
        total = sum(blob.nbytes for _, record in live.values() for blob in record.blobs if blob.pack)
        done = 0
        for name, (time, record) in live.items():
            done += sum(blob.nbytes for blob in record.blobs if blob.pack)
            if progress is not None:
                progress(done, total)
            self._lines.append(put_line(name, time, self._move(name, record)).line)
            if len(self._pack) >= _SEGMENT_BYTES:
                self._finish()
        if self._lines:
            self._finish()
        return self._written

    def _finish(self) -> None:
        log = b"".join(self._lines)
        if self._pack:
            self._backend.create(pack_key(self._segment), bytes(self._pack))
        # Synced before the old logs go, or a power failure could take both.
        self._backend.create(log_key(self._segment), log)
        self._written += len(self._pack) + len(log)
        self._begin()

    def _move(self, name: str, record: TensorRecord) -> TensorRecord:
        match record:
            case DenseRecord():
                return replace(record, blob=self._move_blob(name, record.blob))
            case SparseRecord():
                parts = {
                    part: replace(dense, blob=self._move_blob(name, dense.blob)) for part, dense in record.parts.items()
                }
                return replace(record, parts=parts)

    def _move_blob(self, name: str, blob: BlobRef) -> BlobRef:
        place = _place(self._backend, self._index, name, blob)
        if place.pack is None or place.pack not in self._retired:
            return place
        if blob.digest not in self._moved:
            data = bytearray(blob.nbytes)
            if self._backend.read_into(pack_key(place.pack), place.at, memoryview(data)) != blob.nbytes:
                raise FileNotFoundError(pack_key(place.pack))
            self._moved[blob.digest] = replace(place, pack=self._segment, at=len(self._pack))
            self._pack += data + bytes(-len(data) % PACK_ALIGNMENT)
        return self._moved[blob.digest]


def _sweep(backend: Backend, live: set[Digest]) -> tuple[int, int]:
    """Remove the blobs that are not `live`; return how many, and their bytes."""
    unused = {digest: size for digest, size in backend.blobs() if digest not in live}
    for digest in unused:
        backend.set_aside(digest)
    # A writer that found a blob before it was set aside has its record in the logs by now, or will miss the blob.
    _bring_back(backend, _read(backend))
    return len(unused), sum(unused.values())


def _bring_back(backend: Backend, index: Index) -> None:
    """Return what was set aside and is used after all; remove the rest. Also after a collection that was killed."""
    aside = [Digest(name) for name in backend.list("aside")]
    if not aside:
        return
    used = {blob.digest for name in index.names() if (known := index.find(name)) for blob in blobs_in(known.tensor)}
    for digest in aside:
        if digest in used and backend.size(blob_key(digest)) is None:
            backend.bring_back(digest)
        else:
            backend.remove(aside_key(digest))
