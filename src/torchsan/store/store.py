"""The store as users see it."""

from __future__ import annotations

import atexit
import errno
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from torchsan.errors import StoreError
from torchsan.records import TensorMeta
from torchsan.store.backend import Backend, Progress, check_format, prepare
from torchsan.store.committing import BackgroundWriter, Committer
from torchsan.store.index import Index, Known
from torchsan.store.local import LocalBackend
from torchsan.store.metadata import BlobRef, Digest, TensorRecord, check_name, from_json, nearest
from torchsan.store.planning import Plan, plan
from torchsan.store.reading import Pool, Reader, load
from torchsan.store.upkeep import FsckReport, GcReport, check, collect

_LOOKS = 3


def _open_backend(url: str, *, durable: bool, storage_options: Mapping[str, Any] | None) -> Backend:
    """Return the backend for `url`: a local path, `file://` or any other fsspec URL."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:(//|:)", url) and not url.startswith(("file://", "local://")):
        from torchsan.store.remote import RemoteBackend  # fsspec takes a while to import

        return RemoteBackend(url, storage_options or {})
    return LocalBackend(re.sub(r"^(file|local)://", "", url), durable=durable)


class Store:
    """Tensors by name, their bytes stored once by content.

    `url` is a local folder, made at the first put, or any fsspec URL (`memory://…`, `s3://…`; `storage_options` go
    to fsspec). Any number of threads, processes and machines may read and write one store at once. A put that
    returned is seen by every later read, and survives the death of its process; with `durable=True` a power failure
    too (local folders). `queue_bytes` bounds the memory of puts that do not wait.

    >>> import torch, torchsan
    >>> store = torchsan.Store("memory://tensors")
    >>> store.put("x", torch.arange(3))
    >>> store.get("x"), store.names()
    (tensor([0, 1, 2]), ['x'])
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        durable: bool = False,
        queue_bytes: int = 64 << 20,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = os.fspath(url)
        self._backend = _open_backend(self.url, durable=durable, storage_options=storage_options)
        self._index = Index(self._backend)
        self._committer = Committer(self._backend, self._index)
        self._reader = Reader(self._backend, self._packed)
        self._lock = threading.RLock()
        self._exists = False
        self._queue_bytes = queue_bytes
        self._background: BackgroundWriter | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Writing

    def put(self, name: str, tensor: torch.Tensor, *, wait: bool = True) -> None:
        """Store `tensor` as `name`, in place of what had that name.

        With `wait=False` its bytes are copied and written by a thread; this only blocks while `queue_bytes` are
        queued. `flush` waits for them. A tensor of more than `queue_bytes` is written at once, without a copy.
        """
        self.put_many({name: tensor}, wait=wait)

    def put_many(self, tensors: Mapping[str, torch.Tensor], *, wait: bool = True) -> None:
        """Store `tensors` in one step. Those that share a storage share it again when they are read together.

        What is stored of a shared storage is the one span that covers them all.
        """
        planned = plan(tensors)
        if not planned.tensors:
            return
        if wait or planned.nbytes > self._queue_bytes:
            # What was queued came first, and must not win over this.
            self._drain()
            self._commit([planned])
        else:
            self._writer().add(planned.snapshot())

    def flush(self) -> None:
        """Wait for the puts that did not wait. Raise StoreError if one of them failed since the last flush."""
        self._notice_fork()
        if self._background is not None:
            self._background.flush()

    def delete(self, name: str) -> None:
        """Forget `name`. Its bytes stay until `gc`. Raise StoreError if there is no such tensor."""
        with self._current():
            self._find(check_name(name))
            self._committer.delete(name)

    def close(self) -> None:
        """Flush, and let go of files and threads. The store can be used again afterwards."""
        try:
            self.flush()
        finally:
            with self._lock:
                background, self._background = self._background, None
            if background is not None:
                background.stop()
                atexit.unregister(background.drain)
            self._backend.close()

    # Reading

    def get(
        self, name: str, device: torch.device | str | None = None, *, fresh: bool = False, verify: bool = True
    ) -> torch.Tensor:
        """Return the tensor `name`, a leaf, on `device` (None: the one it was put from).

        Local data are mapped copy-on-write: nothing is read until it is used, and writing into the tensor never
        reaches the store. Reads share storages that are still in use; with `fresh` the storage aliases nothing.
        `verify` compares the bytes with their digest when this store reads them first.
        """
        return self.get_many([name], device, fresh=fresh, verify=verify)[name]

    def get_many(
        self,
        names: Iterable[str],
        device: torch.device | str | None = None,
        *,
        fresh: bool = False,
        verify: bool = True,
    ) -> dict[str, torch.Tensor]:
        """Return the tensors `names`, as `get` does. With `fresh` they share storages among themselves only."""
        wanted = [check_name(name) for name in names]
        where = None if device is None else torch.device(device)
        for attempt in range(_LOOKS):
            with self._current():
                records = {name: self._record(name, verify) for name in wanted}
            pool: Pool = {} if fresh else self._reader.shared
            try:
                with self._explained():
                    return {
                        name: load(self._reader, name, record, device=where, pool=pool, verify=verify)
                        for name, record in records.items()
                    }
            except StoreError as e:
                # A collection may have moved the bytes since we read the logs; then another look finds them.
                if attempt == _LOOKS - 1 or e.slug != "corrupt-blob":
                    raise
                time.sleep(0.01 * attempt)
        raise AssertionError("unreachable")

    def exists(self) -> bool:
        """Return whether there is a store at the URL; the first put makes one."""
        with self._current():
            return self._exists

    def __contains__(self, name: str) -> bool:
        """Return whether there is a tensor `name`."""
        with self._current():
            return self._index.find(check_name(name)) is not None

    def describe(self, name: str) -> TensorMeta:
        """Return the metadata of the tensor `name` as it was put, without its data."""
        return self.record(name).meta

    def record(self, name: str) -> TensorRecord:
        """Return all that is stored about the tensor `name`, its blobs too."""
        with self._current():
            return self._record(check_name(name), verify=True)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the tensors that begin with `prefix`, sorted."""
        with self._current():
            return sorted(name for name in self._index.names() if name.startswith(prefix))

    # Looking after it

    def fsck(self, progress: Progress | None = None) -> FsckReport:
        """Check every record and every byte. The report is true when nothing is damaged."""
        with self._current():
            return check(self._backend, self._index, progress)

    def gc(self, *, drop_damaged: bool = False, grace: float = 3600.0, progress: Progress | None = None) -> GcReport:
        """Remove what no name refers to. Others may go on reading and writing meanwhile.

        Damaged records and names without data are an error, unless `drop_damaged` gives them up. Leftover temporary
        files are removed when they are older than `grace` seconds.
        """
        with self._current():
            return collect(self._backend, drop_damaged=drop_damaged, grace=grace, progress=progress)

    # Inside

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the lock, with the manifest checked and the index as new as the logs."""
        self._drain()
        with self._lock, self._explained():
            self._exists = self._exists or check_format(self._backend)
            self._index.refresh()
            yield

    def _commit(self, plans: Sequence[Plan]) -> None:
        with self._lock, self._explained():
            if not self._exists:
                prepare(self._backend)
                self._exists = True
            self._committer.put(plans)

    def _find(self, name: str) -> Known:
        if (known := self._index.find(name)) is not None:
            return known
        near = ", ".join(repr(n) for n in nearest(name, self._index.names()))
        damaged = "; some records are damaged, see `torchsan store fsck`" if self._index.damaged else ""
        raise StoreError(
            f"no tensor {name!r} in {self.url}; {f'the nearest are {near}' if near else 'nothing has a similar name'}"
            + damaged,
            slug="tensor-not-found",
        )

    def _record(self, name: str, verify: bool) -> TensorRecord:
        known = self._find(name)
        if verify and self._index.doubtful(known):
            raise StoreError(
                f"a damaged record in {self.url} may have been a newer {name!r}; "
                "`torchsan store fsck` shows which log, `torchsan store gc --drop-damaged` gives the record up, and "
                "verify=False reads what there is",
                slug="damaged-log",
            )
        return from_json(name, known.tensor)

    def _packed(self, digest: Digest) -> list[BlobRef]:
        with self._lock:
            return self._index.packed(digest)

    def _writer(self) -> BackgroundWriter:
        self._notice_fork()
        # Without the lock, which a commit under way holds: a put that does not wait must not wait for that either.
        if (background := self._background) is not None:
            return background
        with self._lock:
            if self._background is None:
                self._background = BackgroundWriter(self._commit, limit=self._queue_bytes)
                # A program that ends without close still gets its tensors.
                atexit.register(self._background.drain)
            return self._background

    def _drain(self) -> None:
        self._notice_fork()
        if self._background is not None and not self._background.owns_current_thread:
            self._background.drain()

    def _notice_fork(self) -> None:
        """In a child that was forked: the parent's thread is not here, and its lock may never be released."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._background = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the system into StoreErrors that say what to do."""
        try:
            yield
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreError(
                    f"no space left for {self.url} ({e}); nothing stored before is lost: free some space and put again",
                    slug="disk-full",
                ) from e
            raise StoreError(f"cannot use the store {self.url}: {e}", slug="store-io") from e
