"""The cache check: code from a compile cache against a fresh compile of its graph. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsan.watch.observer import Observer

if TYPE_CHECKING:
    from torchsan.checks.collector import Collector
    from torchsan.torch_internals.caches import CachedCode


class CacheCheck(Observer):
    """Looks at the first calls of each graph whose cached code is other code than a fresh compile gives."""

    name = "cache check"

    def __init__(self, collector: Collector, calls: int | None) -> None:
        """`calls` is how many calls of each graph are looked at; None for all."""
        self._collector = collector
        self._calls = calls

    def cached(self, found: CachedCode) -> None:
        self._collector.recorder.event("cached", {"cache": found.cache, "key": found.key, "same": found.same})
        if not found.same:
            from torchsan.checks.cache.watch import CacheWatch

            found.watch = CacheWatch(self._collector, found, self._calls)
