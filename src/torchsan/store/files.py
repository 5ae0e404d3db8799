"""Writing to local files."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from blake3 import blake3

from torchsan.store.metadata import Digest
from torchsan.store.spans import Source, chunks, digest_of

_QUEUE = 3
"""Chunks that hashing may be ahead of writing."""


def write_source(fd: int, source: Source, digest: Digest | None) -> Digest:
    """Write `source` to `fd`; hash it meanwhile if its digest is not known."""
    if digest is not None:
        for chunk in chunks(source):
            write_all(fd, chunk)
        return digest
    hasher = blake3(max_threads=blake3.AUTO)
    todo: queue.Queue[memoryview | None] = queue.Queue(_QUEUE)
    failures: list[OSError] = []

    def writer() -> None:
        while (chunk := todo.get()) is not None:
            try:
                if not failures:
                    write_all(fd, chunk)
            except OSError as e:
                failures.append(e)

    thread = threading.Thread(target=writer, name="torchsan-store-blob")
    try:
        thread.start()
    except RuntimeError:  # an interpreter that is ending starts no threads
        return write_source(fd, source, digest_of(source))
    try:
        for chunk in chunks(source):
            if failures:
                break
            todo.put(chunk)
            hasher.update(chunk)
    finally:
        todo.put(None)
        thread.join()
    if failures:
        raise failures[0]
    return Digest(hasher.hexdigest())


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
