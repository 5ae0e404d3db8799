"""Keeps, beside a finding, what a reproducer of it needs: the calls that it is about and the tensors they were given.

Importing it imports no torch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchsan.graphs.data import Keep
from torchsan.records import Exhibit, Finding, Severity
from torchsan.watch.observer import CompiledProgram, Observer

if TYPE_CHECKING:
    import torch

    from torchsan.recording import Writer
    from torchsan.store import Store

log = logging.getLogger(__name__)

_MOST_FINDINGS = 8
_MOST_BYTES = 256 << 20
"""Of the tensors of one run. What is more is kept as metadata, and made up when it is needed."""

Build = Callable[[Finding, Keep, Mapping[str, Any]], Exhibit | None]
"""Makes the exhibit of a finding from a way to store tensors and the configuration of the compile."""


class Exhibits(Observer):
    """The exhibits of one run: of its first errors. Thread-safe; what fails is said in the recording, never raised."""

    name = "exhibits"

    def __init__(self, writer: Writer, max_bytes: int | None) -> None:
        """`max_bytes` is what the user allows all tensors of the run to take; None for no limit."""
        self._writer = writer
        self._left = _MOST_BYTES if max_bytes is None else min(_MOST_BYTES, max_bytes)
        self._count = 0
        self._store: Store | None = None
        self._config: dict[int, dict[str, Any]] = {}
        self._lock = threading.RLock()

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.torch_internals.inductor import changed_config

        self._config[id(program)] = changed_config()

    def keep(self, finding: Finding, build: Build, program: CompiledProgram | None = None) -> None:
        """Keep what `build` makes of a finding that has its id, if it is an error and one of the first."""
        if finding.severity is not Severity.ERROR or not finding.id:
            return
        with self._lock:
            self._count += 1
            if self._count > _MOST_FINDINGS:
                reason = f"exhibits are kept of the first {_MOST_FINDINGS} errors of a run"
                self._writer.event("no-exhibit", {"finding": finding.id, "reason": reason})
                return
            try:
                exhibit = build(finding, lambda name, t: self._put(finding, name, t), self._configuration(program))
            except Exception as e:
                log.debug("no exhibit of %s", finding.id, exc_info=True)
                reason = f"{type(e).__name__}: {e}".splitlines()[0][:300]
                self._writer.event("no-exhibit", {"finding": finding.id, "reason": reason})
                return
            if exhibit is not None:
                self._writer.event("exhibit", {"exhibit": exhibit})

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _configuration(self, program: CompiledProgram | None) -> dict[str, Any]:
        from torchsan.torch_internals.inductor import changed_config

        return changed_config() if program is None else self._config.get(id(program), {})

    def _put(self, finding: Finding, name: str, tensor: torch.Tensor) -> str | None:
        size = tensor.numel() * tensor.element_size()
        if size > self._left:
            return None
        if self._store is None:
            from torchsan.store import Store

            self._store = Store(str(self._writer.path / "tensors"))
        key = f"repro/{finding.id}/{name}"
        self._store.put(key, tensor.detach())
        self._left -= size
        return key
