"""What watches a program while it runs. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torchsan.options import Options, Watch
from torchsan.recording import Writer
from torchsan.torch_internals.gaps import observe_gaps
from torchsan.torch_internals.patches import watch_seams
from torchsan.torch_internals.seams import called
from torchsan.watch.calls import Timer
from torchsan.watch.compiled import Programs
from torchsan.watch.observer import not_checked
from torchsan.watch.operators import OperatorObserver, observe_operators
from torchsan.watch.steps import observe_steps
from torchsan.watch.values import Watcher, passing_probe_to

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.watch.observer import Observer
    from torchsan.watch.sampling import Sampler

__all__ = ["Programs", "attach", "observe_seams", "watching"]


@contextmanager
def attach(recorder: Recorder, observers: Iterable[Observer]) -> Iterator[None]:
    """Watch this process until the context ends; what is seen goes to the recorder and to the observers."""
    observers = tuple(observers)
    with ExitStack() as stack:
        programs = Programs(recorder, observers)
        stack.callback(programs.detach)
        stack.enter_context(programs.compiles())
        stack.enter_context(observe_gaps(recorder.gap, partial(_gaps_failed, recorder)))
        stack.enter_context(observe_steps(recorder))
        if _sampler(observers) is not None:  # Without a budget the signal does what it does without torchsan.
            stack.enter_context(programs.requests.attached())
        for observer in observers:
            stack.enter_context(observer.attached())
            if isinstance(observer, OperatorObserver):
                stack.enter_context(observe_operators(observer))
        yield


@contextmanager
def watching(recorder: Recorder, options: Options, observers: Iterable[Observer]) -> Iterator[tuple[Observer, ...]]:
    """Give the observers; for a recording on disk, which somebody will read, with a timer and what `--watch` asks for.

    Values that pass `torchsan.probe` are seen while the context lasts, and seams that are missing are reported.
    """
    observers = tuple(observers)
    with ExitStack() as stack:
        watched = options.watch is not Watch.OFF
        stack.enter_context(observe_seams(recorder, [*options.check, *(["watch"] if watched else [])]))
        if isinstance(recorder, Writer):
            sampler = _sampler(observers)
            timed = options.calls if sampler is None else 1
            checked = bool(options.check) and sampler is None
            observers = (*observers, Timer(recorder, timed, checked=checked, sampler=sampler))
            if watched:
                watcher = Watcher(recorder, options)
                stack.enter_context(passing_probe_to(watcher))
                # First, so that a launch is named before a check has a chance to fail on it.
                observers = (watcher, *observers)
        yield tuple(observers)


def _gaps_failed(recorder: Recorder, error: Exception) -> None:
    recorder.skipped(called("gaps"), f"torchsan failed: {type(error).__name__}: {error}"[:300])


def observe_seams(recorder: Recorder, users: Collection[str]) -> AbstractContextManager[None]:
    """Record which of these checks are off, and for want of which private name of PyTorch, as soon as that is known."""
    return watch_seams(users, partial(not_checked, recorder))


def _sampler(observers: Iterable[Observer]) -> Sampler | None:
    """What chooses the launches to look at under a budget; None if there is none."""
    return next((s for o in observers if (s := getattr(o, "sampler", None)) is not None), None)
