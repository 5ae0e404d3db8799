"""Where watched values go: the terminal, the event log, the recording's store."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torchsan.errors import StoreError, TorchsanError
from torchsan.options import Options, Watch
from torchsan.recording import Writer
from torchsan.records import TensorSummary, Watched
from torchsan.records.tensor import describe_value, launch_label, value_key

if TYPE_CHECKING:
    import torch

    from torchsan.store import Store

log = logging.getLogger(__name__)

_REMEMBERED = 1024
"""How many summaries are kept: a value is seen after the kernel that made it and before each one that reads it."""
_QUEUE = 256 << 20
"""Bytes. What a step of a model of some millions of parameters makes is written while the next one runs."""
_WORTH_REMEMBERING = 4096
"""Bytes. What is smaller is summarized faster than it is looked up."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """How wide the columns of the printed lines are, so that those of one program stand below each other."""

    kernel: int = 24
    name: int = 10


class WatchOutput:
    """Takes watched values from any thread. What cannot be kept is said, and never stops the program."""

    def __init__(self, writer: Writer, options: Options) -> None:
        self._writer = writer
        self._print = options.watch in (Watch.PRINT, Watch.NAMES)
        self._save = options.watch is Watch.SAVE
        self._limit = options.max_bytes
        self._full = False
        self._bytes = 0
        self._stored: dict[tuple[str, tuple[int, ...]], str] = {}
        self._summaries: OrderedDict[str, TensorSummary] = OrderedDict()
        self._unrecorded: set[str] = set()
        """Tensors that were saved, or begun to be, and that no event speaks of yet."""
        self._store: Store | None = None
        self._lock = threading.Lock()

    def launch(self, watched: Watched) -> None:
        """A launch by its name alone: on the terminal and in the log before anything else happens."""
        name = f" {watched.name}" if watched.name else ""
        _line(f"torchsan: {launch_label(watched)} {watched.phase} {watched.kernel}{name}")
        self._writer.event("watched", {"watched": watched})

    def value(self, watched: Watched, value: Any, widths: Widths = Widths()) -> None:  # noqa: B008  # frozen
        """Print or save one value. None, and what is neither a tensor nor a number, is left out."""
        import torch

        if isinstance(value, torch.Tensor):
            watched = self._tensor(watched, value)
        elif isinstance(value, bool | int | float | complex | str):
            watched = dataclasses.replace(watched, value=value)
        elif isinstance(value, tuple | list):
            watched = dataclasses.replace(watched, value=str(value))
        else:
            return
        # Before the event: a tensor that nothing speaks of is forgotten at the end, one that is recorded must stay.
        self._unrecorded.discard(watched.stored or "")
        self._writer.event("watched", {"watched": watched})
        if self._print:
            where = f"{launch_label(watched):22} {watched.phase:6} {watched.kernel:{widths.kernel}}"
            node = f"  = {watched.node}" if watched.node else ""
            _line(f"torchsan: {where} {watched.name:{widths.name}} {describe_value(watched)}{node}")

    def close(self) -> None:
        """Wait until everything is on disk. What Ctrl-C interrupted between saving and recording is forgotten."""
        if self._store is not None:
            try:
                self._store.flush()
                for name in self._unrecorded.intersection(self._store.names()):
                    self._store.delete(name)
                self._store.close()
            except StoreError as e:
                self._writer.skipped("saved values", f"some could not be written: {e}")

    def _tensor(self, watched: Watched, value: torch.Tensor) -> Watched:
        value = value.detach()
        content = _content(value) if self._save or _size(value) >= _WORTH_REMEMBERING else None
        stored = self._put(watched, value, content) if self._save else None
        return dataclasses.replace(watched, summary=self._summary(value, content), stored=stored)

    def _summary(self, value: torch.Tensor, content: str | None) -> TensorSummary:
        from torchsan.tensors import describe, summarize

        if content is None:
            return summarize(value)
        with self._lock:
            known = self._summaries.get(content)
            if known is not None:
                self._summaries.move_to_end(content)
        if known is not None:
            return dataclasses.replace(known, meta=describe(value))
        summary = summarize(value)
        with self._lock:
            self._summaries[content] = summary
            if len(self._summaries) > _REMEMBERED:
                self._summaries.popitem(last=False)
        return summary

    def _put(self, watched: Watched, value: torch.Tensor, content: str | None) -> str | None:
        """Save a tensor, unless its contents are there already, and return its name in the store, or None."""
        name = value_key(watched)
        with self._lock:
            if content is not None and (known := self._stored.get((content, value.stride()))) is not None:
                return known
            size = _size(value)
            if self._limit is not None and (self._full or self._bytes + size > self._limit):
                self._say_full(watched, self._limit)
                return None
            self._bytes += size
            store = self._open()
        self._unrecorded.add(name)
        try:
            store.put(name, value, wait=False)
        except StoreError as e:
            self._writer.skipped(name, f"could not be saved: {e}")
            return None
        if content is not None:
            with self._lock:
                self._stored[content, value.stride()] = name
        return name

    def _say_full(self, watched: Watched, limit: int) -> None:
        """Once, here and in the recording: from now on nothing new is saved, not even what would fit."""
        if not self._full:
            self._full = True
            reason = f"--max-bytes {limit} is reached; new values are summarized from here on, not saved"
            self._writer.skipped(f"saving from {launch_label(watched)} {watched.kernel} {watched.name} on", reason)
            _line(f"torchsan: {reason}")

    def _open(self) -> Store:
        if self._store is None:
            from torchsan.store import Store

            self._store = Store(str(self._writer.path / "tensors"), queue_bytes=_QUEUE)
        return self._store


def _size(value: torch.Tensor) -> int:
    # Not `nbytes`, which sparse tensors refuse.
    return value.numel() * value.element_size()


def _content(value: torch.Tensor) -> str | None:
    """A fingerprint of dtype, shape and elements; None where the elements cannot be read."""
    from torchsan.tensors import digest

    try:
        return digest(value)
    except TorchsanError:
        return None


def _line(text: str) -> None:
    """One line on standard error at once, past every buffer: it is there even if the next launch kills the process."""
    try:
        os.write(2, (text + "\n").encode(errors="replace"))
    except OSError:
        log.debug("standard error is gone")
