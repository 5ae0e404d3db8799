"""Writing to local files."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from blake3 import blake3

from torchsan.store.metadata import Digest
from torchsan.store.spans import Source, chunks, digest_of

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
