"""Looking after a store: `check` finds what is damaged, and `collect` removes what no name refers to."""

from __future__ import annotations

import random
import time
from collections.abc import Set
from dataclasses import dataclass, replace
from operator import itemgetter
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
    retired_key,
)
from torchsan.store.index import Index, blobs_in, delete_line, put_line
from torchsan.store.metadata import BlobRef, Digest, SegmentId, TensorRecord, check_name, from_json, is_digest
from torchsan.store.reading import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is damaged: a file of the store or the name of a tensor, and what is wrong with it."""

    where: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """What `fsck` found; truthy when nothing is damaged. `notes` are leftovers, which `gc` removes."""

    tensors: int
    blobs: int
    nbytes: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems


def check(backend: Backend, index: Index, progress: Progress | None) -> FsckReport:
    """Check the store behind `index`, which must be fresh."""
    problems = [
        Problem(where=log_key(segment), what=f"{count} damaged record{'s' if count > 1 else ''}")
        for segment, count in index.damaged.items()
    ]
    problems += [
        Problem(where=f"log/{name}", what="no plain file, so what it says is not read")
        for name, size in backend.list("log").items()
        if size < 0
    ]
    used: dict[BlobRef, str] = {}
    tensors = sorted(index.tensors(), key=itemgetter(0))
    for name, known in tensors:
        try:
            check_name(name)
            record = from_json(name, known.tensor)
        except StoreError as e:
            problems.append(Problem(where=name, what=str(e)))
            continue
        for blob in record.blobs:
            used.setdefault(blob, name)
    distinct = {blob.digest: blob.nbytes for blob in used}
    total, done = sum(blob.nbytes for blob in used), 0
    reader = Reader(backend, index.packed)
    for blob, name in used.items():
        try:
            reader.verify(name, blob)
        except StoreError as e:
            problems.append(Problem(where=name, what=str(e)))
        done += blob.nbytes
        if progress is not None:
            progress(done, total)
    return FsckReport(
        tensors=len(tensors),
        blobs=len(distinct),
        nbytes=sum(distinct.values()),
        problems=tuple(problems),
        notes=tuple(_leftovers(backend, index, used)),
    )


def _leftovers(backend: Backend, index: Index, used: dict[BlobRef, str]) -> list[str]:
    notes = [f"{log_key(segment)} ends inside a record: a put that did not finish" for segment in index.unfinished]
    wanted = {blob.digest for blob in used}
    unused = [(digest, size) for digest, size in backend.blobs() if digest not in wanted]
    if unused:
        size = sum(size for _, size in unused)
        notes.append(f"{len(unused)} blobs that no name refers to ({size} bytes), such as {blob_key(unused[0][0])}")
    packs = {blob.pack for blob in used}
    idle = [segment for segment in index.segments if segment not in packs and backend.size(pack_key(segment))]
    if idle:
        notes.append(f"{len(idle)} packs that no name refers to")
    temporary = [*backend.list("tmp"), *(name for name in backend.list("") if name.endswith(".tmp"))]
    notes += [
        f"{len(files)} files {what}"
        for files, what in (
            (temporary, "of puts that did not finish"),
            (backend.list("aside"), "of a collection that did not finish"),
            (backend.list("damaged"), "that were damaged and are kept in damaged/"),
        )
        if files
    ]
    return notes


_ATTEMPTS = 50
_SEGMENT_BYTES = 16 << 20
_SETTLE = 0.1
"""Seconds; many times what a writer takes between finding bytes and writing its record."""
_LOOKS = 5
"""How often a record whose bytes are missing is looked at before it counts as damaged."""
_REMEMBER_NS = 24 * 3600 * 10**9
"""How long deletions are kept: longer than a collection takes that read the logs before one and writes after it."""

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
    with backend.collecting() as held:
        for attempt in range(_ATTEMPTS):
            try:
                return _collect(held, drop_damaged=drop_damaged, grace=grace, progress=progress)
            except FileNotFoundError:
                time.sleep(random.random() * 0.02 * attempt)  # another collection is at work; let it finish
    raise StoreError(f"another collection is at work in {backend.url}; try again later", slug="store-busy")


def _collect(backend: Backend, *, drop_damaged: bool, grace: float, progress: Progress | None) -> GcReport:
    index = _read(backend)
    if index.damaged and not drop_damaged:
        raise StoreError(
            f"{backend.url} has damaged records in {log_key(next(iter(index.damaged)))}; "
            "see `torchsan store fsck`, then collect with --drop-damaged to give them up",
            slug="damaged-log",
        )
    leftover = {Digest(name) for name in backend.list("aside") if is_digest(name)}
    _bring_back(backend, leftover, remove=False)
    _live(backend, index, drop_damaged)
    segments = index.segments
    for segment in segments:
        backend.retire(segment)
    # Only now: what is appended to a retired log after this, its writer appends again elsewhere.
    index = _read(backend)
    live, dropped = _live(backend, index, drop_damaged)
    before = sum(backend.size(key) or 0 for segment in segments for key in _files(segment))
    after = _Compaction(backend, index, frozenset(segments)).run(live, progress)
    used = {blob.digest for _, record in live.values() for blob in record.blobs}
    unused = {digest: size for digest, size in backend.blobs() if digest not in used and is_digest(digest)}
    for digest in unused:
        backend.set_aside(digest)
    # A writer that relied on what we remove has its record in the logs by now, or will notice and put again. The
    # pause is for one that is killed in between: its record would be there and its bytes would not.
    time.sleep(_SETTLE)
    _check_independence(_read(backend), frozenset(segments), dropped)
    _bring_back(backend, leftover | unused.keys(), remove=True)
    for segment in segments:
        for key in _files(segment):
            backend.remove(key)
    for key in backend.leftovers(grace):
        backend.remove(key)
    freed = sum(unused.values()) + before - after
    return GcReport(blobs=len(unused), nbytes=max(0, freed), dropped=tuple(dropped))


def _read(backend: Backend) -> Index:
    index = Index(backend)
    index.refresh()
    return index


def _files(segment: SegmentId) -> tuple[str, ...]:
    # The pack goes after the logs: a log without its pack would be damage, a pack without its log is none.
    return log_key(segment, old=True), log_key(segment), pack_key(segment), retired_key(segment)


def _live(backend: Backend, index: Index, drop_damaged: bool) -> tuple[Live, dict[str, int]]:
    """Return the records that can be read, and names and times of the others, which `drop_damaged` gives up."""
    live: Live = {}
    dropped: dict[str, int] = {}
    errors: list[StoreError] = []
    for name, known in sorted(index.tensors(), key=itemgetter(0)):
        try:
            record = from_json(name, known.tensor)
            for blob in record.blobs:
                if _place(backend, index, blob) is None:
                    raise StoreError(
                        f"the data of tensor {name!r} in {backend.url} are missing; see `torchsan store fsck`, then "
                        "put it again, delete it, or collect with --drop-damaged",
                        slug="corrupt-blob",
                    )
        except StoreError as e:
            dropped[name] = known.time
            errors.append(e)
        else:
            live[name] = (known.time, record)
    if dropped:
        _check_settled(backend, index, dropped)
    if dropped and not drop_damaged:
        raise errors[0]
    return live, dropped


def _check_settled(backend: Backend, index: Index, missed: dict[str, int]) -> None:
    """Raise FileNotFoundError, to begin again, if what is `missed` is there or is about to be.

    A writer may have relied on bytes that a collection removes, notice that, and put them again, with a new record.
    """
    for _ in range(_LOOKS):
        time.sleep(_SETTLE)
        now = _read(backend)
        # Logs go before their packs: what we missed, another collection has moved.
        known = {name: now.find(name) for name in missed}
        if now.segments != index.segments or any(k is None or k.time != missed[n] for n, k in known.items()):
            raise FileNotFoundError


def _place(backend: Backend, index: Index, blob: BlobRef) -> BlobRef | None:
    """Return where the bytes of `blob` are, by size; whether they are right is for fsck to say."""
    if not blob.nbytes:
        return replace(blob, pack=None, at=0)
    for place in (blob, *index.packed(blob.digest)):
        for key in _keys(place):
            if (backend.size(key) or 0) >= place.at + place.nbytes:
                return place
    return None


def _keys(place: BlobRef) -> tuple[str, ...]:
    if place.pack is not None:
        return (pack_key(place.pack),)
    # Twice, because another collection may have brought it back between two looks.
    return blob_key(place.digest), aside_key(place.digest), blob_key(place.digest)


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
        for name, (when, record) in live.items():
            done += sum(blob.nbytes for blob in record.blobs if blob.pack)
            if progress is not None:
                progress(done, total)
            self._lines.append(put_line(name, when, record.placed(self._move)).line)
            if len(self._pack) >= _SEGMENT_BYTES:
                self._finish()
        oldest = time.time_ns() - _REMEMBER_NS
        self._lines += [delete_line(name, when).line for name, when in self._index.deletions() if when > oldest]
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

    def _move(self, blob: BlobRef) -> BlobRef:
        place = _place(self._backend, self._index, blob)
        if place is None:
            raise FileNotFoundError(blob.digest)  # it was there a moment ago, so another collection has moved it
        if place.pack is None or place.pack not in self._retired:
            return place
        if blob.digest not in self._moved:
            data = bytearray(blob.nbytes)
            if self._backend.read_into(pack_key(place.pack), place.at, memoryview(data)) != blob.nbytes:
                raise FileNotFoundError(pack_key(place.pack))
            self._moved[blob.digest] = replace(place, pack=self._segment, at=len(self._pack))
            self._pack += data + bytes(-len(data) % PACK_ALIGNMENT)
        return self._moved[blob.digest]


def _check_independence(index: Index, retired: frozenset[SegmentId], dropped: dict[str, int]) -> None:
    """Raise FileNotFoundError, to begin again, if a record needs a retired pack that was not copied for it.

    Records that were `dropped` were not copied on purpose; what has their name and is newer counts.
    """
    for name, known in index.tensors():
        if known.time == dropped.get(name):
            continue
        for blob in blobs_in(known.tensor):
            if not blob.nbytes or blob.pack not in retired:
                continue
            if all(place.pack in retired for place in index.packed(blob.digest)):
                raise FileNotFoundError(blob.digest)


def _bring_back(backend: Backend, aside: Set[Digest], *, remove: bool) -> None:
    """Return those that were set `aside` and are used after all; `remove` the rest.

    The logs are read here, after the setting aside: a record that is older must be seen.
    """
    if not aside:
        return
    used = {blob.digest for _, known in _read(backend).tensors() for blob in blobs_in(known.tensor)}
    for digest in aside:
        if digest in used and backend.size(blob_key(digest)) is None:
            backend.bring_back(digest)
        elif remove:
            backend.remove(aside_key(digest))
