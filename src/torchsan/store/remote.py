"""A store behind any fsspec URL. Nothing is appended to: each commit is a segment of its own, written once.

Object stores make a file visible when it is complete. On other file systems a file that was cut short shows: a log
as an unfinished line, a blob by its size.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types

from torchsan.errors import StoreError
from torchsan.store.backend import (
    Backend,
    Commit,
    Mapped,
    aside_key,
    blob_key,
    log_key,
    new_segment,
    pack_key,
    retired_key,
)
from torchsan.store.metadata import Digest, SegmentId
from torchsan.store.planning import Source, chunks, digest_bytes, digest_of

_PART = 32 << 20
"""Bytes that are fetched at a time."""
_CHEAP = 64 << 10
"""Bytes that cost about as much to fetch as to ask for their size."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise what a library for some protocol raises as OSError: many have errors of their own, and all mean that."""
    try:
        yield
    except OSError:
        raise
    except Exception as e:
        raise OSError(errno.EIO, f"{type(e).__name__}: {e}") from e


class _Translated:
    """A file system whose methods raise OSError, and nothing else."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._fs, name)
        return _translated()(method)


class RemoteBackend(Backend):
    """A store behind an fsspec URL."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.url = url
        try:
            # Listings that are cached would hide what other writers put.
            fs, root = fsspec.core.url_to_fs(url, **{"use_listings_cache": False, **storage_options})
        except (ImportError, ValueError) as e:
            raise StoreError(f"cannot open {url}: {e}", slug="bad-url") from e
        self._fs = _Translated(fs)
        self._prefix = root.rstrip("/") + "/"

    def read_small(self, key: str, limit: int) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._prefix + key, start=0, end=limit))
        except FileNotFoundError:
            return None
        except OSError:
            if self.size(key) == 0:
                return b""  # S3 has no range in an empty file
            raise

    def create(self, key: str, data: bytes) -> None:
        path = self._prefix + key
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, data)

    def list(self, folder: str) -> dict[str, int]:
        path = self._prefix + folder
        self._fs.invalidate_cache(path)
        try:
            infos = self._fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {info["name"].rpartition("/")[2]: int(info["size"] or 0) for info in infos if info["type"] == "file"}

    def size(self, key: str) -> int | None:
        path = self._prefix + key
        self._fs.invalidate_cache(path)
        try:
            size = self._fs.info(path)["size"]
        except FileNotFoundError:
            return None
        return None if size is None else int(size)

    def read_into(self, key: str, start: int, view: memoryview) -> int:
        done = 0
        while done < len(view):
            end = start + min(done + _PART, len(view))
            part = self._fs.cat_file(self._prefix + key, start=start + done, end=end)
            view[done : done + len(part)] = part
            done += len(part)
            if start + done < end:
                break
        return done

    def map(self, key: str, nbytes: int) -> Mapped | None:
        """Return None: nothing here can be mapped."""
        return None

    def holds(self, digest: Digest, nbytes: int) -> bool:
        if nbytes > _CHEAP:
            return self.size(blob_key(digest)) == nbytes
        data = self.read_small(blob_key(digest), nbytes + 1)
        return data is not None and digest_bytes(data) == digest

    def put_blob(self, source: Source, digest: Digest | None) -> Digest:
        """Store `source`. Hashing costs little next to sending, so it always comes first."""
        digest = digest or digest_of(source)
        if not self.holds(digest, source.nbytes):
            path = self._prefix + blob_key(digest)
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with _translated(), self._fs.open(path, "wb") as file:
                for chunk in chunks(source):
                    file.write(chunk)
        return digest

    def distrust(self, digest: Digest) -> None:
        """Move the blob to where nobody takes it for whole."""
        with contextlib.suppress(OSError):
            self._move(blob_key(digest), f"damaged/{digest}")

    def blobs(self) -> Iterator[tuple[Digest, int]]:
        self._fs.invalidate_cache(self._prefix + "blobs")
        for path, info in sorted(self._fs.find(self._prefix + "blobs", detail=True).items()):
            yield Digest(path.rpartition("/")[2]), info["size"]

    def commit(self, pack: bytes, lines: Callable[[SegmentId, int], bytes]) -> Commit | None:
        """Write a segment. It is new, so no collection can know it."""
        segment = new_segment()
        if pack:
            self.create(pack_key(segment), pack)
        log = lines(segment, 0)
        self.create(log_key(segment), log)
        return Commit(segment=segment, offset=0, nbytes=len(log))

    def retire(self, segment: SegmentId) -> None:
        """Mark `segment` by a file beside its log: renaming an object means copying it."""
        self.create(retired_key(segment), b"")

    def is_current(self, segment: SegmentId) -> bool:
        """Return whether `segment` is in use. The mark is looked for first, because it is removed last."""
        return self.size(retired_key(segment)) is None and self.size(log_key(segment)) is not None

    def set_aside(self, digest: Digest) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._move(blob_key(digest), aside_key(digest))

    def bring_back(self, digest: Digest) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._move(aside_key(digest), blob_key(digest))

    def leftovers(self, age: float) -> Iterable[str]:
        """Return nothing: no file is written under another name first."""
        return ()

    def remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._prefix + key)

    def collecting(self) -> contextlib.AbstractContextManager[Backend]:
        return contextlib.nullcontext(self)  # There are no locks.

    def close(self) -> None:
        """Nothing is kept open."""

    def _move(self, source: str, target: str) -> None:
        path = self._prefix + target
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.mv(self._prefix + source, path)
