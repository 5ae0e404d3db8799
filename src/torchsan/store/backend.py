"""What a place must offer to hold a store. Every backend passes the one contract suite in tests/store."""

from __future__ import annotations

import json
import mmap
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torchsan.errors import StoreError
from torchsan.store.metadata import Digest, SegmentId
from torchsan.store.planning import Source

MANIFEST = "torchsan-store.json"
Progress = Callable[[int, int], None]
"""Called with how many bytes are done and how many there are."""

PACK_ALIGNMENT = 64
"""Bytes; every dtype and vector load is aligned in a pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Where a commit went: `nbytes` were added to the log of `segment` at byte `offset`."""

    segment: SegmentId
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A private, writable mapping of a blob. `signature` changes when the file does."""

    memory: mmap.mmap
    signature: object


class Backend(Protocol):
    """A flat space of files, `/` between folder and name. OSErrors pass through; the store explains them.

    Everything but the logs and packs of the running writer is written once and never changed.
    """

    url: str

    def read_small(self, key: str, limit: int) -> bytes | None:
        """Return up to `limit` bytes of the file `key`, or None if there is none."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Write the file `key` so that it is there whole, durably, or not at all; replace one that is there."""
        ...

    def list(self, folder: str) -> dict[str, int]:
        """Return the names and sizes of the files in `folder`; empty when there is no such folder."""
        ...

    def size(self, key: str) -> int | None:
        """Return the size of the file `key`, or None if there is none."""
        ...

    def read_into(self, key: str, start: int, view: memoryview) -> int:
        """Fill `view` from byte `start` of the file `key`; return how many bytes there were. No file: OSError."""
        ...

    def map(self, key: str, nbytes: int) -> Mapped | None:
        """Map the file `key`, of `nbytes`, copy-on-write; None where that cannot be, or when its size is another."""
        ...

    def holds(self, digest: Digest, nbytes: int) -> bool:
        """Return whether the blob is there and, as far as can be told cheaply, intact."""
        ...

    def put_blob(self, source: Source, digest: Digest | None) -> Digest:
        """Store `source` as a blob unless it is there, and return its digest. None: not yet known, likely new."""
        ...

    def distrust(self, digest: Digest) -> None:
        """Remember that the blob is damaged, so that the next put of its contents writes it anew."""
        ...

    def blobs(self) -> Iterator[tuple[Digest, int]]:
        """Yield the digest and size of every blob that has a file of its own."""
        ...

    def commit(self, pack: bytes, lines: Callable[[SegmentId, int], bytes]) -> Commit | None:
        """Append `pack`, then the log lines that `lines(segment, where the pack starts)` makes.

        Return None if a collection retired the segment meanwhile: readers may not see the commit, so do it again.
        """
        ...

    def retire(self, segment: SegmentId) -> None:
        """Mark `segment` as one that will go. Readers still read it; `is_current` is false from now on."""
        ...

    def is_current(self, segment: SegmentId) -> bool:
        """Return whether `segment` is there and not retired."""
        ...

    def set_aside(self, digest: Digest) -> None:
        """Take the blob away so that `bring_back` can undo it. No such blob: nothing happens."""
        ...

    def bring_back(self, digest: Digest) -> None:
        """Undo `set_aside`."""
        ...

    def leftovers(self, age: float) -> Iterable[str]:
        """Return the keys of temporary files that nobody has written to for `age` seconds."""
        ...

    def remove(self, key: str) -> None:
        """Remove the file `key`, if it is there."""
        ...

    def collecting(self) -> AbstractContextManager[Backend]:
        """Keep other collections out while inside, where that can be: they would only make each other begin again.

        What it gives is to be collected: the same store, whose folders are what they were, where that can be.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def blob_key(digest: Digest) -> str:
    """Return the key of a blob that has a file of its own."""
    return f"blobs/{digest[:2]}/{digest}"


def log_key(segment: SegmentId, *, old: bool = False) -> str:
    """Return the key of a segment's log; `old` once a collection took it over."""
    return f"log/{segment}.old" if old else f"log/{segment}.log"


def pack_key(segment: SegmentId) -> str:
    """Return the key of a segment's pack."""
    return f"log/{segment}.pack"


def retired_key(segment: SegmentId) -> str:
    """Return the key of the file that marks a segment as retired, where logs cannot be renamed."""
    return f"log/{segment}.retired"


def aside_key(digest: Digest) -> str:
    """Return the key of a blob that was set aside."""
    return f"aside/{digest}"


def new_segment() -> SegmentId:
    """Return a name that no other writer has; names sort by time."""
    return SegmentId(f"{time.time_ns():016x}-{secrets.token_hex(6)}")


FORMAT = 1
"""Raised when a store is written that older versions would misread."""

_LIMIT = 64 << 10


def check_format(backend: Backend) -> bool:
    """Return whether there is a store. Raise StoreError if it is damaged or written by a newer version."""
    data = backend.read_small(MANIFEST, _LIMIT)
    if data is None:
        return False
    try:
        manifest = json.loads(data)
        number = manifest["format"]
    except (ValueError, RecursionError, KeyError, TypeError):
        number = None
    if type(number) is not int or number < 1:
        raise StoreError(
            f'{backend.url}/{MANIFEST} is damaged; if this is a store, write {{"format": {FORMAT}}} into it',
            slug="damaged-manifest",
        )
    if number > FORMAT:
        raise StoreError(
            f"{backend.url} has format {number}, and this version of torchsan knows {FORMAT}; use a newer torchsan",
            slug="newer-format",
        )
    return True


def prepare(backend: Backend) -> None:
    """Make `backend` a store unless it is one. Raise StoreError if something else is there."""
    if check_format(backend):
        return
    # The manifest is a store's first file, so anything else without it is someone else's.
    others = [name for name in backend.list("") if not name.endswith(".tmp")]
    if others:
        if check_format(backend):
            return  # another writer was a moment faster
        raise StoreError(
            f"{backend.url} is not a store and not empty (it holds {others[0]!r}); choose another folder",
            slug="not-a-store",
        )
    backend.create(MANIFEST, json.dumps({"format": FORMAT, "kind": "torchsan tensor store"}).encode() + b"\n")
