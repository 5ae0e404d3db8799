"""Every backend, each with a way to look behind its back."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
import pytest

from tests.store.s3 import s3_server
from torchsan.store import Store
from torchsan.store.backend import blob_key, pack_key
from torchsan.store.metadata import BlobRef


@dataclass(kw_only=True)
class Place:
    """Where a store is, and access to its files that does not go through torchsan."""

    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> Store:
        return Store(self.url, storage_options=self.storage_options or None, **options)

    @property
    def _fs(self) -> tuple[Any, str]:
        fs, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **self.storage_options)
        fs.invalidate_cache()
        return fs, root.rstrip("/")

    def files(self) -> dict[str, bytes]:
        fs, root = self._fs
        return {path.removeprefix(root).lstrip("/"): fs.cat_file(path) for path in fs.find(root)}

    def read(self, key: str) -> bytes:
        fs, root = self._fs
        return bytes(fs.cat_file(f"{root}/{key}"))

    def write(self, key: str, data: bytes) -> None:
        fs, root = self._fs
        fs.pipe_file(f"{root}/{key}", data)

    def remove(self, key: str) -> None:
        fs, root = self._fs
        fs.rm_file(f"{root}/{key}")

    def damage(self, blob: BlobRef, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of `blob` where they are."""
        if blob.pack is None:
            self.write(blob_key(blob.digest), change(self.read(blob_key(blob.digest))))
            return
        pack = self.read(pack_key(blob.pack))
        inside = pack[blob.at : blob.at + blob.nbytes]
        self.write(pack_key(blob.pack), pack[: blob.at] + change(inside) + pack[blob.at + blob.nbytes :])

    def blob_bytes(self) -> int:
        """Return how many bytes of tensors are stored, as files or packed."""
        return sum(len(data) for key, data in self.files().items() if key.startswith("blobs/") or key.endswith(".pack"))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server in a process of its own."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(url=str(tmp_path / "store"))


@pytest.fixture
def memory() -> Place:
    return Place(url=f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def s3(s3_endpoint: str) -> Place:
    options = {"key": "testing", "secret": "testing", "client_kwargs": {"endpoint_url": s3_endpoint}}
    bucket = f"b{uuid.uuid4().hex}"
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    fsspec.filesystem("s3", **options).mkdir(bucket)
    return Place(url=f"s3://{bucket}/some/store", storage_options=options)


BACKENDS = [
    "local",
    "memory",
    pytest.param("s3", marks=pytest.mark.xdist_group("s3")),
]


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest) -> Place:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    with place.open() as opened:
        yield opened
