"""Putting without waiting: a queue of bounded size and one thread that writes from it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from torchsan.errors import StoreError
from torchsan.store.planning import Plan

log = logging.getLogger(__name__)

_BATCH = 512
_LINGER = 0.02
_RECORD_COST = 1_024
"""Bytes that a queued put takes beside its data, roughly."""


class BackgroundWriter:
    """Hands plans to `write` in batches, in order, from a thread of its own.

    `add` waits while `limit` bytes are queued: memory stays bounded, and a producer that is faster than the disk is
    slowed to the disk's speed. What fails is kept and raised by the next `flush`.
    """

    def __init__(self, write: Callable[[Sequence[Plan]], None], *, limit: int) -> None:
        self._write = write
        self._limit = limit
        self._queue: deque[Plan] = deque()
        self._queued = 0
        self._busy = False
        self._stopped = False
        self._failures: list[tuple[str, Exception]] = []
        self._flushing = 0
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._done = threading.Condition(lock)
        self._thread = threading.Thread(target=self._run, name="torchsan-store-writer", daemon=True)
        self._thread.start()

    def add(self, plan: Plan) -> None:
        """Queue `plan`, whose bytes must be snapshots, once there is room."""
        cost = plan.nbytes + _RECORD_COST
        with self._done:
            if self._queued and self._queued + cost > self._limit:
                self._hurry(lambda: not self._queued or self._queued + cost <= self._limit)
            self._queue.append(plan)
            self._queued += cost
            if len(self._queue) in (1, _BATCH):
                self._work.notify()

    def _hurry(self, until: Callable[[], bool]) -> None:
        """With the lock held: wait, and have the thread write what there is without lingering."""
        self._flushing += 1
        self._work.notify()
        self._done.wait_for(lambda: until() or not self._thread.is_alive())
        self._flushing -= 1

    @property
    def owns_current_thread(self) -> bool:
        """True in the writing thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def drain(self) -> None:
        """Wait until all that was added is written or has failed."""
        with self._done:
            self._hurry(lambda: not self._queue and not self._busy)

    def flush(self) -> None:
        """Wait until all that was added is written; raise StoreError if any of it was not, since the last flush."""
        self.drain()
        with self._done:
            failures, self._failures = self._failures, []
        if failures:
            names = ", ".join(repr(name) for name, _ in failures[:5]) + (", …" if len(failures) > 5 else "")
            slug = failures[0][1].slug if isinstance(failures[0][1], StoreError) else "put-failed"
            raise StoreError(
                f"{len(failures)} of the tensors put in the background were not stored ({names}): {failures[0][1]}",
                slug=slug,
            ) from failures[0][1]

    def stop(self) -> None:
        """End the thread after what is queued."""
        with self._work:
            self._stopped = True
            self._work.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._queue or self._stopped)
                if not self._queue:
                    return
                # Small tensors come in swarms; writing them together costs a fraction of writing each.
                self._work.wait_for(
                    lambda: len(self._queue) >= _BATCH or self._flushing or self._stopped, timeout=_LINGER
                )
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._busy = True
            self._write_batch(batch)
            with self._done:
                self._queued -= sum(plan.nbytes + _RECORD_COST for plan in batch)
                self._busy = False
                self._done.notify_all()

    def _write_batch(self, batch: list[Plan]) -> None:
        try:
            self._write(batch)
        except Exception as e:  # noqa: BLE001  # whatever it is, it is the caller's to see, at the next flush
            if len(batch) == 1:
                log.warning("%s not stored: %s", ", ".join(map(repr, batch[0].tensors)), e)
                self._failures += [(name, e) for name in batch[0].tensors]
                return
            # One tensor that does not fit must not take its neighbours with it.
            for plan in batch:
                self._write_batch([plan])
