"""`--watch`: names, prints or saves what every kernel reads (before it runs) and writes (after). It changes nothing."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.errors import StoreError
from torchsan.instruments.observer import CallWatch, CompiledProgram, Observer, Values
from torchsan.instruments.program import Launch
from torchsan.options import Options, Watch, When
from torchsan.recording import Writer
from torchsan.records import Watched
from torchsan.records.watched import describe_value, launch_label
from torchsan.torch_internals.patching import Patches

if TYPE_CHECKING:
    import torch

    from torchsan.store import Store

__all__ = ["Watcher", "probes_to"]

log = logging.getLogger(__name__)

INPUTS, OUTPUTS, PROBE = "(inputs)", "(outputs)", "(probe)"
"""What stands for a kernel's name where no kernel is launched."""


class Watcher(Observer):
    """Watches every call of every compiled program, and every probe."""

    name = "watch"

    def __init__(self, writer: Writer, options: Options) -> None:
        self._calls: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()
        self._selects = options.selects
        self.names_only = options.watch is Watch.NAMES
        self.before = options.when is not When.AFTER
        # A name is one line a launch: before it, unless asked for after it, so that the last one names a crash.
        self.after = options.when is When.AFTER or (options.when is When.BOTH and not self.names_only)
        self.sink = _Sink(writer, options)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        key = (program.record.id, program.record.direction)
        with self._lock:
            nth = self._calls[key]
            self._calls[key] += 1
        return _Call(self, program, nth)

    def selects(self, kernel: str) -> bool:
        """Whether the user wants to see this kernel."""
        return self._selects(kernel)

    def probed(self, name: str, value: torch.Tensor) -> None:
        """A value passed `torchsan.probe`; its gradient comes as `name.grad`."""
        if self.selects(name) or self.selects(PROBE):
            self.sink.value(
                Watched(graph=None, direction=None, call=0, launch=None, kernel=PROBE, phase="after", name=name), value
            )

    def close(self) -> None:
        """Write what is still under way."""
        self.sink.close()


class _Call(CallWatch):
    def __init__(self, watcher: Watcher, program: CompiledProgram, call: int) -> None:
        self._watcher = watcher
        self._program = program
        self._call = call
        self._launch = -1

    def _record(self, kernel: str, phase: str, name: str = "", launch: int | None = None) -> Watched:
        ref = self._program.ref
        return Watched(
            graph=ref.id, direction=ref.direction, call=self._call, launch=launch, kernel=kernel, phase=phase, name=name
        )

    def enter(self, function: str, inputs: Values) -> None:
        if function == "call" and not self._watcher.names_only and self._watcher.selects(INPUTS):
            for name, value in inputs.items():
                self._watcher.sink.value(self._record(INPUTS, "before", name), value)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        self._launch += 1
        if not self._watcher.before or not self._watcher.selects(launch.kernel):
            return
        if self._watcher.names_only:
            self._watcher.sink.launch(self._record(launch.kernel, "before", launch=self._launch))
            return
        # What is not written yet is not worth a look.
        for name in launch.reads:
            self._watcher.sink.value(self._record(launch.kernel, "before", name, self._launch), values[name])
        self._numbers(launch, "before")

    def after(self, function: str, launch: Launch, values: Values) -> None:
        if not self._watcher.after or not self._watcher.selects(launch.kernel):
            return
        if self._watcher.names_only:
            self._watcher.sink.launch(self._record(launch.kernel, "after", launch=self._launch))
            return
        for name in launch.writes:
            for part, value in _parts(name, values[name]):
                self._watcher.sink.value(self._record(launch.kernel, "after", part, self._launch), value)

    def leave(self, function: str, outputs: Any) -> None:
        if function == "call" and not self._watcher.names_only and self._watcher.selects(OUTPUTS):
            for i, value in enumerate(outputs):
                self._watcher.sink.value(self._record(OUTPUTS, "after", f"output{i}"), value)

    def _numbers(self, launch: Launch, phase: str) -> None:
        for i, argument in enumerate(launch.arguments):
            if argument.base is None:
                watched = self._record(launch.kernel, phase, f"argument{i}", self._launch)
                self._watcher.sink.value(watched, argument.text)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value, or the parts of a result that is several."""
    if isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield f"{name}[{i}]", part
    else:
        yield name, value


class _Sink:
    """Where watched values go: the terminal, the event log, the recording's store."""

    def __init__(self, writer: Writer, options: Options) -> None:
        self._writer = writer
        self._print = options.watch in (Watch.PRINT, Watch.NAMES)
        self._save = options.watch is Watch.SAVE
        self._limit = options.max_bytes
        self._bytes = 0
        self._store: Store | None = None
        self._lock = threading.Lock()

    def launch(self, watched: Watched) -> None:
        """A launch by its name alone: on the terminal and in the log before anything else happens."""
        self._writer.event("watched", {"watched": watched})
        _line(f"torchsan: {launch_label(watched)} {watched.phase} {watched.kernel}")

    def value(self, watched: Watched, value: Any) -> None:
        """Print or save one value. None, and what is neither a tensor nor a number, is left out."""
        import torch

        if isinstance(value, torch.Tensor):
            watched = self._tensor(watched, value)
        elif isinstance(value, bool | int | float | str):
            watched = dataclasses.replace(watched, value=value)
        else:
            return
        self._writer.event("watched", {"watched": watched})
        if self._print:
            where = f"{launch_label(watched):22} {watched.phase:6} {watched.kernel:32}"
            _line(f"torchsan: {where} {watched.name:10} {describe_value(watched)}")

    def _tensor(self, watched: Watched, value: torch.Tensor) -> Watched:
        from torchsan.tensors import summarize

        stored = self._put(watched, value) if self._save else None
        return dataclasses.replace(watched, summary=summarize(value.detach()), stored=stored)

    def _put(self, watched: Watched, value: torch.Tensor) -> str | None:
        size = value.numel() * value.element_size()
        with self._lock:
            if self._limit is not None and self._bytes + size > self._limit:
                if self._bytes <= self._limit:
                    self._bytes = self._limit + 1  # Said once; nothing more is saved, not even what would fit.
                    reason = f"--max-bytes {self._limit} is reached; values from here on are summarized, not saved"
                    self._writer.skipped(f"saving from {launch_label(watched)} {watched.kernel} on", reason)
                    _line(f"torchsan: {reason}")
                return None
            self._bytes += size
            store = self._open()
        name = _stored_name(watched)
        try:
            store.put(name, value.detach(), wait=False)
        except StoreError as e:
            self._writer.skipped(name, f"could not be saved: {e}")
            return None
        return name

    def _open(self) -> Store:
        if self._store is None:
            from torchsan.store import Store

            self._store = Store(str(self._writer.path / "tensors"))
        return self._store

    def close(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except StoreError as e:
                self._writer.skipped("saved values", f"some could not be written: {e}")


def _stored_name(watched: Watched) -> str:
    """Graph, call, launch, kernel, phase and variable: no two values of a run share it."""
    where = "probes" if watched.graph is None else f"graph{watched.graph}-{watched.direction}/call{watched.call}"
    launch = "" if watched.launch is None else f"{watched.launch:04}-"
    return f"{where}/{launch}{watched.kernel}/{watched.phase}/{watched.name}"


def _line(text: str) -> None:
    """One line on standard error at once, past every buffer: it is there even if the next launch kills the process."""
    try:
        os.write(2, (text + "\n").encode(errors="replace"))
    except OSError:
        log.debug("standard error is gone")


@contextmanager
def probes_to(watcher: Watcher) -> Iterator[None]:
    """Send what passes `torchsan.probe` to the watcher while the context lasts, if the program uses it at all."""
    patches = Patches()
    try:
        listen = lambda module: patches.replace(module, "_listener", lambda _nobody: watcher.probed)  # noqa: E731
        patches.when_imported("torchsan.ops.probe", listen)
        yield
    finally:
        patches.restore()
