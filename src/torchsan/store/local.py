"""A store in a local folder: memory-mapped blobs, and one log and one pack per writer, appended to."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from blake3 import blake3

from torchsan.files import identity, moved_up, open_plain
from torchsan.store.backend import (
    MANIFEST,
    PACK_ALIGNMENT,
    Backend,
    Commit,
    Mapped,
    aside_key,
    blob_key,
    log_key,
    new_segment,
    pack_key,
)
from torchsan.store.metadata import Digest, SegmentId, is_digest
from torchsan.store.planning import Source, chunks, digest_bytes, digest_of

_HASHED = 16 << 20
"""Bytes that are hashed at a time; less makes BLAKE3's threads wait for each other."""


def write_source(fd: int, source: Source, digest: Digest | None) -> Digest:
    """Write `source` to `fd`; hash it meanwhile if its digest is not known.

    Writing and hashing go through the source each at its own pace: tied together, the faster would wait for the slower.
    """
    file = identity(fd)
    reserve(fd, source.nbytes)
    if digest is not None:
        for chunk in chunks(source):
            write_all(fd, chunk, file)
        return digest
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for chunk in chunks(source):
                write_all(fd, chunk, file)
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


def write_all(fd: int, data: memoryview | bytes, file: tuple[int, int] | None) -> None:
    """Write all of `data`, however many calls it takes. Raise OSError if `fd` does not lead to `file` any more."""
    view = memoryview(data)
    while view:
        if identity(fd) != file:
            raise OSError(errno.EBADF, "the program closed a descriptor that it did not open")
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the system can."""
    if os.name == "posix":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _GrowingFile:
    """A file that this process alone appends to. A failed append is undone."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self.size = 0
        self._durable = durable
        self._fd = moved_up(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644))
        self._identity = identity(self._fd)

    @property
    def intact(self) -> bool:
        """Whether the descriptor is still ours. The program may have closed it, see `torchsan.files.identity`."""
        return identity(self._fd) == self._identity

    @property
    def moved(self) -> bool:
        """Whether the file was renamed, replaced or removed."""
        return identity(self.path) != self._identity

    def append(self, data: bytes) -> None:
        try:
            write_all(self._fd, data, self._identity)
            if self._durable:
                os.fsync(self._fd)
        except OSError:
            # Readers ignore an unfinished last line, but lines after it would not be readable.
            if self.intact:
                os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        if self.intact:
            os.close(self._fd)


class _Segment:
    """One writer's files: a log, created empty, and a pack. Nobody else writes here."""

    def __init__(self, root: Path, *, durable: bool) -> None:
        self._pid = os.getpid()
        self._id = new_segment()
        self._durable = durable
        path = root / log_key(self._id)
        path.parent.mkdir(exist_ok=True)
        self._log = _GrowingFile(path, durable=durable)
        if durable:
            sync_folder(path.parent)
        self._pack_path = root / pack_key(self._id)
        self._pack: _GrowingFile | None = None

    @property
    def usable(self) -> bool:
        """Whether this process may append: not after a fork, and not through descriptors that changed hands.

        A child that was forked shares the descriptors; two writers in one log would tear each other's lines.
        """
        return self._pid == os.getpid() and self._log.intact and (self._pack is None or self._pack.intact)

    def append(self, pack: bytes, lines: Callable[[SegmentId, int], bytes]) -> Commit | None:
        """See `Backend.commit`. The pack goes first: a line never speaks of bytes that are not there."""
        start = 0
        if pack:
            if self._pack is None:
                self._pack = _GrowingFile(self._pack_path, durable=self._durable)
            padding = -self._pack.size % PACK_ALIGNMENT
            start = self._pack.size + padding
            self._pack.append(bytes(padding) + pack)
        data = lines(self._id, start)
        commit = Commit(segment=self._id, offset=self._log.size, nbytes=len(data))
        self._log.append(data)
        return None if self._log.moved else commit

    def close(self) -> None:
        """Close the files; an empty log is removed, so that opening a store for writing leaves no trace."""
        if self._pid == os.getpid() and not self._log.size and not self._log.moved:
            with contextlib.suppress(OSError):
                self._log.path.unlink()
                self._pack_path.unlink(missing_ok=True)
        self._log.close()
        if self._pack is not None:
            self._pack.close()


_TEMPORARY = re.compile(r"[0-9a-f]{24}")
_BEGUN = re.compile(r".+\.[0-9a-f]{16}\.tmp", re.DOTALL)
"""The names of what is not finished, in `tmp` and beside where it goes. Files of other names are not removed."""

_WHOLE_NS = 1_000_000_000 * 10**9
"""The modification time of every blob that is whole. Whoever writes into a blob changes it without knowing."""


_PATIENCE = 120.0
"""Seconds to wait for another collection."""


def _lock(descriptor: int) -> None:
    import fcntl

    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.02)


class LocalBackend(Backend):
    """A store in a folder. `durable` makes every put survive a power failure, at the price of an fsync."""

    def __init__(self, path: str, *, durable: bool) -> None:
        self.url = path
        self._root = Path(path).absolute()
        self._folders: dict[str, Path] = {}
        self._durable = durable
        self._segment: _Segment | None = None

    def read_small(self, key: str, limit: int) -> bytes | None:
        try:
            with os.fdopen(open_plain(self._path(key), follow=False), "rb") as file:
                return file.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> None:
        """Write the file `key`. It is always synced: the loss of one small file could cost the store."""
        self._folder(key.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        path = self._path(key)
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
        sizes = {}
        try:
            with os.scandir(self._folder(folder)) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        sizes[entry.name] = status.st_size if stat.S_ISREG(status.st_mode) else -1
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return sizes

    def size(self, key: str) -> int | None:
        try:
            status = self._path(key).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read_into(self, key: str, start: int, view: memoryview) -> int:
        done = 0
        fd = open_plain(self._path(key), follow=False)
        try:
            while done < len(view) and (count := os.preadv(fd, [view[done:]], start + done)):
                done += count
        finally:
            os.close(fd)
        return done

    def map(self, key: str, nbytes: int) -> Mapped | None:
        fd = open_plain(self._path(key), follow=False)
        try:
            status = os.fstat(fd)
            if status.st_size != nbytes or not nbytes:
                return None
            memory = mmap.mmap(fd, nbytes, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)
        return Mapped(memory=memory, signature=(status.st_ino, status.st_mtime_ns, status.st_ctime_ns))

    def holds(self, digest: Digest, nbytes: int) -> bool:
        """Return whether the blob is there and whole. Another modification time costs one hash, and is mended."""
        key = blob_key(digest)
        try:
            status = self._path(key).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        if status.st_size != nbytes or not stat.S_ISREG(status.st_mode):
            return False
        if status.st_mtime_ns == _WHOLE_NS:
            return True
        mapped = self.map(key, nbytes)
        if mapped is None or digest_bytes(memoryview(mapped.memory)) != digest:
            return False
        with contextlib.suppress(OSError):
            os.utime(self._path(key), ns=(_WHOLE_NS, _WHOLE_NS))
        return True

    def put_blob(self, source: Source, digest: Digest | None) -> Digest:
        if digest is not None and self.holds(digest, source.nbytes):
            return digest
        folder = self._folder("tmp")
        folder.mkdir(exist_ok=True)
        temporary = folder / secrets.token_hex(12)
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o644)
        try:
            try:
                digest = write_source(fd, source, digest)
                if self._durable:
                    os.fsync(fd)
            finally:
                if identity(fd) == identity(temporary):
                    os.close(fd)
            os.utime(temporary, ns=(_WHOLE_NS, _WHOLE_NS))
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
        """Take the mark of being whole away. The bytes stay, for whoever wants to look at them."""
        with contextlib.suppress(OSError):
            os.utime(self._path(blob_key(digest)), follow_symlinks=False)

    def blobs(self) -> Iterator[tuple[Digest, int]]:
        for shard in sorted(self._folder("blobs").glob("??")):
            for name, size in sorted(self.list(f"blobs/{shard.name}").items()):
                if is_digest(name) and name.startswith(shard.name):  # Others are none of ours, whoever put them there.
                    yield Digest(name), size

    def commit(self, pack: bytes, lines: Callable[[SegmentId, int], bytes]) -> Commit | None:
        if self._segment is None or not self._segment.usable:
            self._folder("log")
            self._segment = _Segment(self._root, durable=self._durable)
        try:
            commit = self._segment.append(pack, lines)
        except BaseException:
            self._leave_segment()
            raise
        if commit is None:
            self._leave_segment()
        return commit

    def retire(self, segment: SegmentId) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(log_key(segment)).rename(self._path(log_key(segment, old=True)))

    def is_current(self, segment: SegmentId) -> bool:
        return self.size(log_key(segment)) is not None

    def set_aside(self, digest: Digest) -> None:
        self._folder("aside").mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path(blob_key(digest)).rename(self._path(aside_key(digest)))

    def bring_back(self, digest: Digest) -> None:
        """Undo `set_aside`. A writer that missed the blob wrote it again; either copy will do."""
        with contextlib.suppress(FileNotFoundError):
            self._path(aside_key(digest)).replace(self._path(blob_key(digest)))

    def leftovers(self, age: float) -> Iterable[str]:
        now = time.time()
        found = [f"tmp/{path.name}" for path in self._folder("tmp").glob("*") if _TEMPORARY.fullmatch(path.name)]
        for at in ("", "log/"):
            begun = [path.name for path in self._folder(at.rstrip("/")).glob("*.tmp")]
            found += [at + name for name in begun if _BEGUN.fullmatch(name)]
        for key in found:
            with contextlib.suppress(FileNotFoundError):
                # Not the modification time, which is set before the file gets its name.
                if now - self._path(key).lstat().st_ctime >= age:
                    yield key

    def remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[Backend]:
        """A lock on the manifest, which goes with its process. Where there are no locks, or in vain, without.

        The folders are held while they are collected: a link that is put in their place meanwhile leads nowhere.
        """
        with contextlib.ExitStack() as held:
            with contextlib.suppress(ImportError, OSError):
                descriptor = open_plain(self._path(MANIFEST), follow=False)
                held.callback(os.close, descriptor)
                _lock(descriptor)
            if _HELD.exists() and self._root.is_dir():  # Nothing is there before the first put.
                yield held.enter_context(contextlib.closing(_HeldBackend(self.url, durable=self._durable)))
            else:
                yield self

    def close(self) -> None:
        self._leave_segment()

    def _leave_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _path(self, key: str) -> Path:
        """The file `key`, in a folder that is one."""
        folder, _, name = key.rpartition("/")
        return self._folder(folder) / name

    def _folder(self, key: str) -> Path:
        """The folder `key`. Raise OSError if it is a link: what it leads to is none of ours to read or remove."""
        if key not in self._folders:
            path = self._root
            for part in filter(None, key.split("/")):
                path /= part
                if path.is_symlink():
                    raise OSError(errno.ELOOP, "a link in the place of a folder of the store", str(path))
            self._folders[key] = path
        return self._folders[key]


_HELD = Path("/proc/self/fd")
"""Where a descriptor of a folder is a path to it, whatever has its name by now."""
_MOST_HELD = 64
"""Descriptors: there are up to 256 folders of blobs. Nothing uses more than two at a time."""


class _HeldBackend(LocalBackend):
    """A store whose folders are opened once, by one thread, and then used by their descriptors."""

    def __init__(self, path: str, *, durable: bool) -> None:
        super().__init__(path, durable=durable)
        self._held: dict[str, tuple[int, tuple[int, int] | None]] = {}
        self._hold("", os.open(self._root, os.O_RDONLY | os.O_DIRECTORY))

    def close(self) -> None:
        super().close()
        for key in list(self._held):
            self._let_go(key)

    def _folder(self, key: str) -> Path:
        """A path to the folder `key` as it was when it was first asked for; one to where it would be, if it is not."""
        if key not in self._held:
            above, _, name = key.rpartition("/")
            place = self._folder(above) / name
            try:
                self._hold(key, os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
            except FileNotFoundError:
                return place
            except NotADirectoryError:
                if not place.is_symlink():
                    return place
                link = str(self._root / key)
                raise OSError(errno.ELOOP, "a link in the place of a folder of the store", link) from None
        number, folder = self._held[key]
        if identity(number) != folder:
            raise OSError(errno.EBADF, "the program closed a descriptor that it did not open")
        return _HELD / str(number)

    def _hold(self, key: str, descriptor: int) -> None:
        number = moved_up(descriptor)
        self._held[key] = number, identity(number)
        shards = [k for k in self._held if k.count("/")]
        if len(shards) > _MOST_HELD:
            self._let_go(shards[0])

    def _let_go(self, key: str) -> None:
        number, folder = self._held.pop(key)
        if identity(number) == folder:
            os.close(number)
