"""A store in a local folder: memory-mapped blobs, and one log and one pack per writer, appended to."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from blake3 import blake3

from torchsan.store.backend import PACK_ALIGNMENT, Commit, Mapped, aside_key, blob_key, log_key, new_segment, pack_key
from torchsan.store.metadata import Digest, SegmentId
from torchsan.store.planning import Source, chunks, digest_bytes, digest_of

_HASHED = 16 << 20
"""Bytes that are hashed at a time; less makes BLAKE3's threads wait for each other."""


def write_source(fd: int, source: Source, digest: Digest | None) -> Digest:
    """Write `source` to `fd`; hash it meanwhile if its digest is not known.

    Writing and hashing go through the source each at its own pace: tied together, the faster would wait for the slower.
    """
    reserve(fd, source.nbytes)
    if digest is not None:
        for chunk in chunks(source):
            write_all(fd, chunk)
        return digest
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for chunk in chunks(source):
                write_all(fd, chunk)
        except BaseException as e:  # noqa: BLE001  # raised again below, in the thread that waits for it
            failures.append(e)

    thread = threading.Thread(target=write, name="torchsan-store-blob")
    try:
        thread.start()
    except RuntimeError:  # an interpreter that is ending starts no threads
        return write_source(fd, source, digest_of(source))
    hasher = blake3(max_threads=blake3.AUTO)
    try:
        for chunk in chunks(source, _HASHED):
            if failures:
                break
            hasher.update(chunk)
    finally:
        thread.join()
    if failures:
        raise failures[0]
    return Digest(hasher.hexdigest())


def reserve(fd: int, nbytes: int) -> None:
    """Take the room on the disk at once, where the system can: writing is faster then, and a full disk shows early."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Write all of `data`, however many calls it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the system can."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class LocalSegment:
    """One writer's files, created empty. A failed append is undone; nobody else writes here."""

    def __init__(self, root: Path, *, durable: bool) -> None:
        self.pid = os.getpid()
        self._id = new_segment()
        self._durable = durable
        self._log_path = root / log_key(self._id)
        self._log_path.parent.mkdir(exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
        self._log_fd = os.open(self._log_path, flags, 0o644)
        if durable:
            sync_folder(self._log_path.parent)
        self._log_ino = os.fstat(self._log_fd).st_ino
        self._log_size = 0
        self._pack_path = root / pack_key(self._id)
        self._pack_fd: int | None = None
        self._pack_size = 0

    def append(self, pack: bytes, lines: Callable[[SegmentId, int], bytes]) -> Commit | None:
        """See `Backend.commit`. The pack goes first: a line never speaks of bytes that are not there."""
        base = -(-self._pack_size // PACK_ALIGNMENT) * PACK_ALIGNMENT
        if pack:
            if self._pack_fd is None:
                self._pack_fd = os.open(self._pack_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
            self._append(self._pack_fd, bytes(base - self._pack_size) + pack, self._pack_size)
            self._pack_size = base + len(pack)
        log = lines(self._id, base)
        self._append(self._log_fd, log, self._log_size)
        commit = Commit(segment=self._id, offset=self._log_size, nbytes=len(log))
        self._log_size += len(log)
        return None if self._retired() else commit

    def close(self) -> None:
        """Close the files; an empty log is removed, so that opening a store for writing leaves no trace."""
        if self.pid == os.getpid() and not self._log_size and not self._retired():
            with contextlib.suppress(OSError):
                self._log_path.unlink()
                self._pack_path.unlink(missing_ok=True)
        os.close(self._log_fd)
        if self._pack_fd is not None:
            os.close(self._pack_fd)

    def _append(self, fd: int, data: bytes, size: int) -> None:
        try:
            write_all(fd, data)
            if self._durable:
                os.fsync(fd)
        except OSError:
            # Readers ignore an unfinished last line, but lines after it would not be readable.
            os.ftruncate(fd, size)
            raise

    def _retired(self) -> bool:
        try:
            return self._log_path.stat().st_ino != self._log_ino
        except FileNotFoundError:
            return True


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
