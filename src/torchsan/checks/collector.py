"""What every check does with a finding: record it once, amend it, keep its exhibit, hand it to the session's policy.

An exhibit is what a reproducer of a finding needs: the calls that it is about, and the tensors they were given.
Importing it imports no torch.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchsan.errors import FindingsError, in_one_line
from torchsan.records import Exhibit, Finding, Severity
from torchsan.watch.calls import current_call
from torchsan.watch.observer import CompiledProgram, Observer

if TYPE_CHECKING:
    import torch

    from torchsan.graphs.data import Keep
    from torchsan.recording import Recorder
    from torchsan.store import Store

log = logging.getLogger(__name__)

_MOST_EXHIBITS = 8
_MOST_BYTES = 256 << 20
"""Of the tensors of one run. What is more is kept as metadata, and made up when it is needed."""

OnError = Callable[[Finding], None]
"""A policy: what to do at an error, in the thread that found it, once it is recorded. May raise FindingsError."""
Build = Callable[[Finding, "Keep", Mapping[str, Any]], Exhibit | None]
"""Makes the exhibit of a finding from a way to store tensors and the configuration of the compile."""


def raise_error(finding: Finding) -> NoReturn:
    """The policy of `--fail-fast`: raise the error where it happens."""
    details = [str(finding.evidence[key]) for key in ("call", "fix") if finding.evidence.get(key)]
    details += [f"at {line.file}:{line.line}" for line in finding.source]
    text = "\n    ".join([f"torchsan: {finding.id}: {finding.kind}: {finding.message}", *details])
    raise FindingsError(text, slug="findings")


class Collector(Observer):
    """The findings of all checks of one session. Thread-safe.

    Each check decides by data when two findings are the same: it gives them the same key. Nothing is raised but what
    `on_error` raises; an exhibit that cannot be made is an event of the recording.
    """

    name = "collector"

    def __init__(
        self,
        recorder: Recorder,
        *,
        tensors: Path | None = None,
        max_bytes: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        """`tensors` is the folder of the store for exhibits; without one none are kept.

        `max_bytes` is what the user allows all tensors of the run to take; None for no limit.
        """
        self.recorder = recorder
        self._tensors = tensors
        self._left = _MOST_BYTES if max_bytes is None else min(_MOST_BYTES, max_bytes)
        self._on_error = on_error
        self._findings: dict[Hashable, Finding] = {}
        self._unrecorded: set[Hashable] = set()
        self._config: dict[int, dict[str, Any]] = {}
        self._exhibits = 0
        self._store: Store | None = None
        # Re-entrant, because a finalizer may report something while this thread is in here.
        self._lock = threading.RLock()
        self._exhibits_lock = threading.RLock()

    def add(
        self,
        key: Hashable,
        finding: Finding,
        build: Build | None = None,
        program: CompiledProgram | None = None,
        *,
        merge: Callable[[Finding, Finding], Finding] | None = None,
    ) -> None:
        """Record a finding, unless its check has one with this key, and keep what `build` makes as its exhibit.

        One that is known is left as it is, or amended to what `merge(known, finding)` returns.
        """
        severity = finding.severity
        key = (finding.check, key)
        if finding.call is None and finding.graph is not None:
            finding = dataclasses.replace(finding, call=current_call(finding.graph))
        with self._lock:
            known = self._findings.get(key)
            if known is None:
                self._findings[key] = finding  # Known also if whoever listens to the recorder raises.
                finding = self.recorder.finding(finding)
            elif merge is None:
                return
            else:
                finding = merge(known, finding)
                self.recorder.amend(finding)
                self._unrecorded.discard(key)
            self._findings[key] = finding
        if build is not None and (known is None or finding.severity.rank > known.severity.rank):
            self._keep(finding, build, program)
        if self._on_error is not None and severity is Severity.ERROR:
            self._on_error(finding)

    def find(self, check: str, key: Hashable) -> Finding | None:
        """The finding that the check gave this key, if there is one."""
        return self._findings.get((check, key))

    def amend(self, check: str, key: Hashable, change: Callable[[Finding], Finding]) -> None:
        """Put what `change` makes of a finding in its place.

        This may happen with every call of an operator, so it is recorded when the session ends.
        """
        with self._lock:
            finding = self._findings[check, key] = change(self._findings[check, key])
            self._unrecorded.add((check, key))
        if self._on_error is not None and finding.severity is Severity.ERROR:
            self._on_error(finding)

    def compiled(self, program: CompiledProgram) -> None:
        if self._tensors is not None:
            self._config[id(program)] = _changed_config()

    def close(self) -> None:
        with self._lock:
            for key in self._unrecorded:
                self.recorder.amend(self._findings[key])
            self._unrecorded.clear()
        if self._store is not None:
            self._store.close()

    def _keep(self, finding: Finding, build: Build, program: CompiledProgram | None) -> None:
        """Keep the exhibit of an error that is one of the first."""
        if self._tensors is None or finding.severity is not Severity.ERROR or not finding.id:
            return
        reason = None
        with self._exhibits_lock:
            self._exhibits += 1
            if self._exhibits > _MOST_EXHIBITS:
                reason = f"what a reproducer needs is kept of the first {_MOST_EXHIBITS} errors of a run"
            else:
                try:
                    config = _changed_config() if program is None else self._config.get(id(program), {})
                    exhibit = build(finding, lambda name, t: self._put(finding, name, t), config)
                    if exhibit is not None:
                        self.recorder.event("exhibit", {"exhibit": exhibit})
                except Exception as e:
                    log.debug("no exhibit of %s", finding.id, exc_info=True)
                    reason = in_one_line(e)
            if reason is not None:
                self.recorder.event("no-exhibit", {"finding": finding.id, "reason": reason})

    def _put(self, finding: Finding, name: str, tensor: torch.Tensor) -> str | None:
        size = tensor.numel() * tensor.element_size()
        if size > self._left:
            return None
        if self._store is None:
            from torchsan.store import Store

            self._store = Store(str(self._tensors))
        key = f"repro/{finding.id}/{name}"
        self._store.put(key, tensor.detach())
        self._left -= size
        return key


def _changed_config() -> dict[str, Any]:
    from torchsan.torch_internals.inductor import changed_config

    return changed_config()
