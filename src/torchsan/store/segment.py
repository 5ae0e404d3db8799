"""The log and the pack that one local writer appends to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from torchsan.store.backend import PACK_ALIGNMENT, Commit, log_key, new_segment, pack_key
from torchsan.store.files import sync_folder, write_all
from torchsan.store.metadata import SegmentId


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
