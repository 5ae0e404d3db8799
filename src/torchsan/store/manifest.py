"""The file that says that a folder is a store, and in which format."""

from __future__ import annotations

import json

from torchsan.errors import StoreError
from torchsan.store.backend import MANIFEST, Backend

FORMAT = 1
"""Raised when a store is written that older versions would misread."""

_LIMIT = 64 << 10


def check_format(backend: Backend) -> bool:
    """Return whether there is a store. Raise StoreError if it is damaged or written by a newer version."""
    data = backend.read_small(MANIFEST, _LIMIT)
    if data is None:
        return False
    try:
        manifest = json.loads(data)
        number = manifest["format"]
    except (ValueError, RecursionError, KeyError, TypeError):
        number = None
    if type(number) is not int or number < 1:
        raise StoreError(
            f'{backend.url}/{MANIFEST} is damaged; if this is a store, write {{"format": {FORMAT}}} into it',
            slug="damaged-manifest",
        )
    if number > FORMAT:
        raise StoreError(
            f"{backend.url} has format {number}, and this version of torchsan knows {FORMAT}; use a newer torchsan",
            slug="newer-format",
        )
    return True


def prepare(backend: Backend) -> None:
    """Make `backend` a store unless it is one. Raise StoreError if something else is there."""
    if check_format(backend):
        return
    # The manifest is a store's first file, so anything else without it is someone else's.
    others = [name for name in backend.list("") if not name.endswith(".tmp")]
    if others:
        if check_format(backend):
            return  # another writer was a moment faster
        raise StoreError(
            f"{backend.url} is not a store and not empty (it holds {others[0]!r}); choose another folder",
            slug="not-a-store",
        )
    backend.create(MANIFEST, json.dumps({"format": FORMAT, "kind": "torchsan tensor store"}).encode() + b"\n")
