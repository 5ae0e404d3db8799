"""Putting plans into a store: places their bytes, then writes the records that speak of them, in that order."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchsan.errors import StoreError
from torchsan.store.backend import PACK_ALIGNMENT, Backend, blob_key, pack_key
from torchsan.store.index import Index, Written, delete_line, put_line
from torchsan.store.metadata import BlobRef, Digest, SegmentId
from torchsan.store.planning import Plan, Source, digest_bytes, digest_of, probe_of

log = logging.getLogger(__name__)

PACK_LIMIT = 64 << 10
"""Bytes. Smaller blobs go into packs, because making a file costs more than writing so little."""
_ATTEMPTS = 50


class Committer:
    """Writes plans. Not safe to use from two threads at once.

    Against a collection in another process: it takes unused bytes away and then reads the logs; we write the log and
    then look whether the bytes are still there. Whichever comes second notices, so no lock is needed.
    """

    def __init__(self, backend: Backend, index: Index) -> None:
        self._backend = backend
        self._index = index

    def put(self, plans: Sequence[Plan]) -> None:
        """Put all tensors of `plans`; they are there, all of one commit, when this returns."""
        self._until_done(lambda: self._put(plans))

    def delete(self, name: str) -> None:
        """Write that `name` is gone."""
        self._until_done(lambda: self._commit(b"", lambda segment, base: [delete_line(name, self._time())]))

    def _until_done(self, attempt: Callable[[], bool]) -> None:
        for number in range(_ATTEMPTS):
            self._index.refresh()
            if attempt():
                return
            time.sleep(random.random() * 0.02 * number)
        raise StoreError(
            f"{self._backend.url} is being collected over and over; put again when gc is done", slug="store-busy"
        )

    def _put(self, plans: Sequence[Plan]) -> bool:
        packing = _Packing(self._backend, self._index)
        placed = [[self._place(source, packing) for source in plan.sources] for plan in plans]
        now = self._time()

        def lines(segment: SegmentId, base: int) -> list[Written]:
            located = [[packing.located(blob, segment, base) for blob in blobs] for blobs in placed]
            puts = (put for plan, blobs in zip(plans, located, strict=True) for put in plan.records(blobs))
            return [put_line(name, now, record) for name, record in puts]

        blobs = {blob for blobs in placed for blob in blobs}
        return self._commit(packing.bytes(), lines) and self._still_there(blobs, packing)

    def _commit(self, pack: bytes, lines: Callable[[SegmentId, int], list[Written]]) -> bool:
        written: list[Written] = []

        def log_lines(segment: SegmentId, base: int) -> bytes:
            written.extend(lines(segment, base))
            return b"".join(item.line for item in written)

        commit = self._backend.commit(pack, log_lines)
        if commit is None:
            return False
        self._index.feed(commit, written)
        return True

    def _place(self, source: Source, packing: _Packing) -> BlobRef:
        if source.nbytes == 0:
            return BlobRef(digest=digest_bytes(b""), nbytes=0)
        if source.nbytes <= PACK_LIMIT:
            return packing.add(bytes(source.read(0, source.nbytes)))
        probe = probe_of(source)
        # Hashing first saves the write of what is there already; hashing while writing is faster for what is not.
        digest = digest_of(source) if self._index.maybe_stored(source.nbytes, probe) else None
        digest = self._backend.put_blob(source, digest)
        log.debug("stored %s (%d bytes)", digest, source.nbytes)
        return BlobRef(digest=digest, nbytes=source.nbytes, probe=probe)

    def _still_there(self, blobs: set[BlobRef], packing: _Packing) -> bool:
        placed = [blob for blob in blobs if blob.nbytes]
        files = {blob_key(blob.digest) for blob in placed if blob.pack is None and blob.digest not in packing.new}
        packs = {blob.pack for blob in placed if blob.pack is not None}
        current = all(self._backend.is_current(pack) for pack in packs)
        return current and all(self._backend.size(key) is not None for key in files)

    def _time(self) -> int:
        return max(time.time_ns(), self._index.newest + 1)


class _Packing:
    """Collects the small blobs of one commit, each once, and leaves out those that some pack has already."""

    def __init__(self, backend: Backend, index: Index) -> None:
        self._backend = backend
        self._index = index
        self._parts: list[bytes] = []
        self._size = 0
        self.new: dict[Digest, BlobRef] = {}

    def add(self, data: bytes) -> BlobRef:
        """Return where `data` is or will be; `located` completes the latter."""
        digest = digest_bytes(data)
        if known := self.new.get(digest):
            return known
        for ref in self._index.packed(digest):
            if self._intact(ref, data):
                return ref
        self.new[digest] = blob = BlobRef(digest=digest, nbytes=len(data), at=self._size)
        padding = -len(data) % PACK_ALIGNMENT
        self._parts += [data, bytes(padding)]
        self._size += len(data) + padding
        return blob

    def _intact(self, ref: BlobRef, data: bytes) -> bool:
        assert ref.pack is not None, "the index lists packed blobs only"
        stored = bytearray(len(data))
        try:
            count = self._backend.read_into(pack_key(ref.pack), ref.at, memoryview(stored))
        except OSError:
            return False
        return count == len(data) and stored == data

    def bytes(self) -> bytes:
        """Return what to append to the pack."""
        return b"".join(self._parts)

    def located(self, blob: BlobRef, segment: SegmentId, base: int) -> BlobRef:
        """Return `blob` with its place, now that the pack's is known."""
        if self.new.get(blob.digest) is not blob:
            return blob
        return replace(blob, pack=segment, at=base + blob.at)


_BATCH = 512
_LINGER = 0.02
_RECORD_COST = 1_024
"""Bytes that a queued put takes beside its data, roughly."""


class BackgroundWriter:
    """Hands plans to `write` in batches, in order, from a thread of its own.

    `add` waits while `limit` bytes are queued: memory stays bounded, and a producer that is faster than the disk is
    slowed to the disk's speed. What fails is kept and raised by the next `flush`.
    """

    def __init__(self, write: Callable[[Sequence[Plan]], None], *, limit: int) -> None:
        self._write = write
        self._limit = limit
        self._queue: deque[Plan] = deque()
        self._queued = 0
        self._busy = False
        self._stopped = False
        self._failures: list[tuple[str, Exception]] = []
        self._flushing = 0
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._done = threading.Condition(lock)
        self._thread = threading.Thread(target=self._run, name="torchsan-store-writer", daemon=True)
        self._thread.start()

    def add(self, plan: Plan) -> None:
        """Queue `plan`, whose bytes must be snapshots, once there is room."""
        cost = plan.nbytes + _RECORD_COST
        with self._done:
            if self._queued and self._queued + cost > self._limit:
                self._hurry(lambda: not self._queued or self._queued + cost <= self._limit)
            self._queue.append(plan)
            self._queued += cost
            if len(self._queue) in (1, _BATCH):
                self._work.notify()

    def _hurry(self, until: Callable[[], bool]) -> None:
        """With the lock held: wait, and have the thread write what there is without lingering."""
        self._flushing += 1
        self._work.notify()
        self._done.wait_for(lambda: until() or not self._thread.is_alive())
        self._flushing -= 1

    @property
    def owns_current_thread(self) -> bool:
        """True in the writing thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def drain(self) -> None:
        """Wait until all that was added is written or has failed."""
        with self._done:
            self._hurry(lambda: not self._queue and not self._busy)

    def flush(self) -> None:
        """Wait until all that was added is written; raise StoreError if any of it was not, since the last flush."""
        self.drain()
        with self._done:
            failures, self._failures = self._failures, []
        if failures:
            names = ", ".join(repr(name) for name, _ in failures[:5]) + (", …" if len(failures) > 5 else "")
            slug = failures[0][1].slug if isinstance(failures[0][1], StoreError) else "put-failed"
            raise StoreError(
                f"{len(failures)} of the tensors put in the background were not stored ({names}): {failures[0][1]}",
                slug=slug,
            ) from failures[0][1]

    def stop(self) -> None:
        """End the thread after what is queued."""
        with self._work:
            self._stopped = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._queue or self._stopped)
                if not self._queue:
                    return
                # Small tensors come many at a time; writing them together costs a fraction of writing each.
                self._work.wait_for(
                    lambda: len(self._queue) >= _BATCH or self._flushing or self._stopped, timeout=_LINGER
                )
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._busy = True
            self._write_batch(batch)
            with self._done:
                self._queued -= sum(plan.nbytes + _RECORD_COST for plan in batch)
                self._busy = False
                self._done.notify_all()

    def _write_batch(self, batch: list[Plan]) -> None:
        try:
            self._write(batch)
        except Exception as e:  # noqa: BLE001  # whatever it is, it is the caller's to see, at the next flush
            if len(batch) == 1:
                log.warning("%s not stored: %s", ", ".join(map(repr, batch[0].tensors)), e)
                self._failures += [(name, e) for name in batch[0].tensors]
                return
            # One tensor that does not fit must not take its neighbours with it.
            for plan in batch:
                self._write_batch([plan])
