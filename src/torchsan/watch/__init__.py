"""What watches a program while it runs. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torchsan.options import Options, Watch
from torchsan.recording import Writer
from torchsan.watch.compiled import Programs
from torchsan.watch.operators import OperatorObserver, observe_operators
from torchsan.watch.timing import Timer
from torchsan.watch.values import Watcher, probes_to

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.watch.observer import Observer

__all__ = ["Programs", "attach", "watching"]


@contextmanager
def attach(recorder: Recorder, observers: Iterable[Observer]) -> Iterator[None]:
    """Watch this process until the context ends; what is seen goes to the recorder and to the observers."""
    observers = tuple(observers)
    with ExitStack() as stack:
        programs = Programs(recorder, observers)
        stack.callback(programs.detach)
        stack.enter_context(programs.compiles())
        for observer in observers:
            stack.enter_context(observer.attached())
            if isinstance(observer, OperatorObserver):
                stack.enter_context(observe_operators(observer))
        yield


@contextmanager
def watching(recorder: Recorder, options: Options, observers: Iterable[Observer]) -> Iterator[tuple[Observer, ...]]:
    """Give the observers; for a recording on disk, which somebody will read, with a timer and what `--watch` asks for.

    Probes are seen while the context lasts.
    """
    if not isinstance(recorder, Writer):
        yield tuple(observers)
        return
    observers = (*observers, Timer(recorder, options.calls, checked=bool(options.check)))
    if options.watch is Watch.OFF:
        yield observers
        return
    watcher = Watcher(recorder, options)
    with probes_to(watcher):
        # First, so that a launch is named before a check has a chance to fail on it.
        yield (watcher, *observers)
