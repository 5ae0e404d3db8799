"""A folder behind an fsspec URL, for recordings: whole files go there and come back. Imports fsspec when it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(path: object) -> bool:
    """Return whether `path` is an fsspec URL, and no local path."""
    return isinstance(path, str) and _URL.match(path) is not None


def join_url(url: str, name: str) -> str:
    """Return the URL of `name` below `url`."""
    return f"{url.rstrip('/')}/{name}"


class RemoteFolder:
    """Files by their key, `/` between folder and name. What the file system raises passes through."""

    def __init__(self, url: str) -> None:
        """Open the folder at `url`. Raise UsageError if there is no such kind of URL, or it has a password in it."""
        if re.match(r"[^/]*//[^/]*:[^/]*@", url):
            raise UsageError(
                "a URL for --out is written into the recording, so it must hold no password; the protocol's own "
                "environment variables or configuration can",
                slug="unwritable-out",
            )
        self.url = url
        import fsspec  # type: ignore[import-untyped]  # it ships no types

        try:
            self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError, TypeError) as e:
            raise UsageError(f"cannot open {url}: {e}", slug="unwritable-out") from e
        self._root = root.rstrip("/")

    def put(self, key: str, file: Path) -> None:
        """Send a file."""
        self._make_folder(key)
        self._fs.put_file(str(file), f"{self._root}/{key}")

    def put_bytes(self, key: str, data: bytes) -> None:
        """Send what is in memory."""
        self._make_folder(key)
        self._fs.pipe_file(f"{self._root}/{key}", data)

    def _make_folder(self, key: str) -> None:
        self._fs.makedirs(f"{self._root}/{key}".rpartition("/")[0], exist_ok=True)

    def get(self, key: str, file: Path, limit: int) -> None:
        """Fetch a file of at most `limit` bytes. Raise ValueError for a larger one."""
        path = f"{self._root}/{key}"
        size = self._fs.info(path)["size"]
        if size is not None and size > limit:
            raise ValueError(f"{key} has {size} bytes")
        self._fs.get_file(path, str(file))

    def list(self, folder: str = "") -> dict[str, tuple[str, int]]:
        """Return the kind (`file` or `directory`) and size of what is in `folder` by name; empty if there is none."""
        path = f"{self._root}/{folder}".rstrip("/")
        self._fs.invalidate_cache(path)
        try:
            infos: list[Any] = self._fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        names = {i["name"].rstrip("/").rpartition("/")[2]: (str(i["type"]), int(i["size"] or 0)) for i in infos}
        return {name: info for name, info in names.items() if name}

    def sizes(self) -> dict[str, int]:
        """Return the size of every file by its key."""
        self._fs.invalidate_cache(self._root)
        found: dict[str, Any] = self._fs.find(self._root, detail=True)
        return {path.removeprefix(self._root).lstrip("/"): int(info["size"] or 0) for path, info in found.items()}

    def remove(self, key: str) -> None:
        """Remove a file that is there."""
        self._fs.rm_file(f"{self._root}/{key}")
