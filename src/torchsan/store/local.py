"""A store in a local folder: memory-mapped blobs, and one log and one pack per writer, appended to."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torchsan.store.backend import Commit, Mapped, aside_key, blob_key, log_key
from torchsan.store.files import sync_folder, write_source
from torchsan.store.metadata import Digest, SegmentId
from torchsan.store.segment import LocalSegment
from torchsan.store.spans import Source, digest_bytes

_SEAL_NS = 1_000_000_000 * 10**9
"""The modification time of every blob that is whole. Whoever writes into a blob breaks the seal without knowing it."""


class LocalBackend:
    """See `Backend`. `durable` makes every put survive a power failure, at the price of an fsync."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self.url = path
        self._root = Path(path).absolute()
        self._prefix = f"{self._root}/"
        self._durable = durable
        self._segment: LocalSegment | None = None

    def read_small(self, key: str, limit: int) -> bytes | None:
        """See `Backend`."""
        try:
            with self._path(key).open("rb") as file:
                return file.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> None:
        """See `Backend`. The one small file whose loss would cost the store, so it is always synced."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{path.name}.{secrets.token_hex(8)}.tmp"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)

    def list(self, folder: str) -> dict[str, int]:
        """See `Backend`."""
        sizes = {}
        try:
            with os.scandir(self._prefix + folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        sizes[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return sizes

    def size(self, key: str) -> int | None:
        """See `Backend`."""
        try:
            return self._path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_into(self, key: str, start: int, view: memoryview) -> int:
        """See `Backend`."""
        done = 0
        fd = os.open(self._prefix + key, os.O_RDONLY)
        try:
            while done < len(view) and (count := os.preadv(fd, [view[done:]], start + done)):
                done += count
        finally:
            os.close(fd)
        return done

    def map(self, key: str, nbytes: int) -> Mapped | None:
        """See `Backend`."""
        fd = os.open(self._prefix + key, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if status.st_size != nbytes or not nbytes:
                return None
            memory = mmap.mmap(fd, nbytes, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)
        return Mapped(memory=memory, signature=(status.st_ino, status.st_mtime_ns, status.st_ctime_ns))

    def holds(self, digest: Digest, nbytes: int) -> bool:
        """See `Backend`. A broken seal costs one hash, and is mended when the blob proves whole."""
        key = blob_key(digest)
        try:
            status = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if status.st_size != nbytes:
            return False
        if status.st_mtime_ns == _SEAL_NS:
            return True
        mapped = self.map(key, nbytes)
        if mapped is None or digest_bytes(memoryview(mapped.memory)) != digest:
            return False
        with contextlib.suppress(OSError):
            os.utime(self._prefix + key, ns=(_SEAL_NS, _SEAL_NS))
        return True

    def put_blob(self, source: Source, digest: Digest | None) -> Digest:
        """See `Backend`."""
        if digest is not None and self.holds(digest, source.nbytes):
            return digest
        folder = self._path("tmp")
        folder.mkdir(exist_ok=True)
        temporary = folder / secrets.token_hex(12)
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o644)
        try:
            try:
                digest = write_source(fd, source, digest)
                if self._durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.utime(temporary, ns=(_SEAL_NS, _SEAL_NS))
            path = self._path(blob_key(digest))
            if self.holds(digest, source.nbytes):
                temporary.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if self._durable:
            sync_folder(path.parent)
        return digest

    def distrust(self, digest: Digest) -> None:
        """See `Backend`. The bytes stay, for whoever wants to look at them; only the seal is broken."""
        with contextlib.suppress(OSError):
            os.utime(self._prefix + blob_key(digest))

    def blobs(self) -> Iterator[tuple[Digest, int]]:
        """See `Backend`."""
        for shard in sorted(self._path("blobs").glob("??")):
            for name, size in sorted(self.list(f"blobs/{shard.name}").items()):
                yield Digest(name), size

    def commit(self, pack: bytes, lines: Callable[[SegmentId, int], bytes]) -> Commit | None:
        """See `Backend`."""
        if self._segment is None or self._segment.pid != os.getpid():
            # A child that was forked shares the descriptors; two writers in one log would tear each other's lines.
            self._segment = LocalSegment(self._root, durable=self._durable)
        try:
            commit = self._segment.append(pack, lines)
        except BaseException:
            self._leave_segment()
            raise
        if commit is None:
            self._leave_segment()
        return commit

    def retire(self, segment: SegmentId) -> None:
        """See `Backend`."""
        with contextlib.suppress(FileNotFoundError):
            self._path(log_key(segment)).rename(self._path(log_key(segment, old=True)))

    def is_current(self, segment: SegmentId) -> bool:
        """See `Backend`."""
        return self.size(log_key(segment)) is not None

    def set_aside(self, digest: Digest) -> None:
        """See `Backend`."""
        self._path("aside").mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path(blob_key(digest)).rename(self._path(aside_key(digest)))

    def bring_back(self, digest: Digest) -> None:
        """See `Backend`. A writer that missed the blob wrote it again; either copy will do."""
        with contextlib.suppress(FileNotFoundError):
            self._path(aside_key(digest)).replace(self._path(blob_key(digest)))

    def leftovers(self, age: float) -> Iterable[str]:
        """See `Backend`."""
        now = time.time()
        for path in [*self._root.glob("tmp/*"), *self._root.glob("*.tmp"), *self._root.glob("log/*.tmp")]:
            with contextlib.suppress(FileNotFoundError):
                # Not the modification time, which the seal sets before the file gets its name.
                if now - path.stat().st_ctime >= age:
                    yield path.relative_to(self._root).as_posix()

    def remove(self, key: str) -> None:
        """See `Backend`."""
        self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """See `Backend`."""
        self._leave_segment()

    def _leave_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _path(self, key: str) -> Path:
        return self._root / key
