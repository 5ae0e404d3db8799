"""What watches a program while it runs. Importing it imports no torch."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torchsan.options import Options, Watch
from torchsan.recording import current_rank
from torchsan.torch_internals import check_version
from torchsan.torch_internals.patches import watch_seams
from torchsan.watch.calls import Timer
from torchsan.watch.compiled import Programs, observe_programs
from torchsan.watch.observer import not_checked
from torchsan.watch.operators import OperatorObserver, observe_operators
from torchsan.watch.replicas import observe_replicas
from torchsan.watch.values import Watcher, passing_probe_to

if TYPE_CHECKING:
    from torchsan.recording import Recorder, Writer
    from torchsan.watch.observer import Observer

__all__ = ["Programs", "attach", "observe_seams", "watching"]


@contextmanager
def attach(writer: Writer, options: Options, observers: Iterable[Observer]) -> Iterator[None]:
    """Watch this process until the context ends; what is seen goes to `writer` and to the observers."""
    caveat = check_version()
    if caveat is not None:
        writer.skipped("PyTorch", caveat)
    with ExitStack() as stack:
        observers = stack.enter_context(watching(writer, options, observers))
        stack.enter_context(observe_programs(writer, observers))
        rank = current_rank(os.environ)
        if rank is not None and rank.world > 1:
            writer.event("rank", {"rank": rank})
            stack.enter_context(observe_replicas(writer))
        for observer in observers:
            stack.enter_context(observer.attached())
            if isinstance(observer, OperatorObserver):
                stack.enter_context(observe_operators(observer))
        yield


@contextmanager
def watching(writer: Writer, options: Options, observers: Iterable[Observer]) -> Iterator[tuple[Observer, ...]]:
    """Give the observers, with a timer, and that of `--watch` if the options ask for it.

    Values that pass `torchsan.probe` are seen while the context lasts, and seams that are missing are reported.
    """
    observers = (*observers, Timer(writer, options.calls, checked=bool(options.check)))
    watched = options.watch is not Watch.OFF
    with ExitStack() as stack:
        stack.enter_context(observe_seams(writer, [*options.check, *(["watch"] if watched else [])]))
        if watched:
            watcher = Watcher(writer, options)
            stack.enter_context(passing_probe_to(watcher))
            # First, so that a launch is named before a check has a chance to fail on it.
            observers = (watcher, *observers)
        yield observers


def observe_seams(recorder: Recorder, users: Collection[str]) -> AbstractContextManager[None]:
    """Record which of these checks are off, and for want of which private name of PyTorch, as soon as that is known."""
    return watch_seams(users, partial(not_checked, recorder))
