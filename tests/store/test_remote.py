from __future__ import annotations

from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]  # it ships no types
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from torchsan.errors import StoreError
from torchsan.store import Store


class _OwnError(Exception):
    """As botocore and aiohttp have them: no OSError."""


def _burn(*_: Any, **__: Any) -> None:
    raise _OwnError("the place is on fire")


class _Failing(MemoryFileSystem):  # type: ignore[misc]  # it has no types
    protocol = "torchsan-failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    left = 1000

    def __getattribute__(self, name: str) -> Any:
        if name in ("ls", "find", "info", "cat_file", "pipe_file", "open", "mv", "rm_file"):
            type(self).left -= 1
            if type(self).left == 0:
                return _burn
        return super().__getattribute__(name)


def test_a_remote_place_that_fails_with_errors_of_its_own_is_no_bug_of_torchsan_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fsspec.register_implementation("torchsan-failing", _Failing, clobber=True)
    monkeypatch.setattr("torchsan.store.upkeep._SETTLE", 0.0)
    kept, failures = {"small": torch.arange(6.0), "large": torch.zeros(100_000)}, 0
    for use in (Store.gc, Store.fsck, Store.names, lambda s: s.put("new", torch.ones(100_000))):
        for at in range(1, 40):
            _Failing.left = 1000
            _Failing.store.clear()
            with Store("torchsan-failing://bucket/store") as store:
                store.put_many(kept)
                _Failing.left = at
                try:
                    use(store)
                except StoreError as e:
                    failures += 1
                    assert "on fire" in str(e)
                _Failing.left = 1000
            with Store("torchsan-failing://bucket/store") as store:
                assert all(torch.equal(store.get(name), t) for name, t in kept.items())
    assert failures > 20


class _Texts(MemoryFileSystem):  # type: ignore[misc]  # it has no types
    """Says sizes as texts, as some servers do."""

    protocol = "torchsan-texts"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        found = super().info(path, **kwargs)
        return {**found, "size": str(found["size"])}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        found = super().ls(path, detail=detail, **kwargs)
        return [{**each, "size": str(each["size"])} for each in found] if detail else found


def test_sizes_that_a_place_says_as_texts_are_numbers() -> None:
    fsspec.register_implementation("torchsan-texts", _Texts, clobber=True)
    with Store("torchsan-texts://bucket/store") as store:
        store.put("x", torch.zeros(100_000))
        assert not store.fsck().problems
        assert store.gc().dropped == ()
        assert torch.equal(store.get("x"), torch.zeros(100_000))
