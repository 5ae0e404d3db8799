"""The instrument for operators: sees each call in eager code, on every thread, forward and backward.

A call whose metadata were seen before costs one look into a dictionary. Importing it imports no torch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torchsan.errors import FindingsError
from torchsan.torch_internals.seams import Patches

log = logging.getLogger(__name__)

Remember = bool | Callable[[], None]
"""Whether calls of a kind need not be looked at again; a function if it is to be called for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One call: the overload, with the arguments it has below autograd."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    functionalized: bool = False
    """Called at the Functionalize key; the arguments are without their wrappers, the result has them."""


class OperatorObserver:
    """Looks at operator calls. One object for a whole session, used from any thread."""

    name = "operator observer"

    def wants(self, overload: Any) -> bool:
        """Whether this operator is looked at at all; asked once."""
        return True

    def before(self, call: OperatorCall) -> Any:
        """The call is about to run. What is returned is handed to `after`."""

    def after(self, call: OperatorCall, before: Any, result: Any) -> Remember:
        """The call returned `result`. True if calls with the same metadata need not be shown again; a function if they
        need only be counted, by calling it.
        """
        return True

    def failed(self, call: OperatorCall, error: Exception) -> None:
        """Looking at this call went wrong."""

    def not_covered(self, what: str, reason: str) -> None:
        """Something runs unseen."""

    def closed(self) -> None:
        """It is over; nothing more will be shown."""


@contextmanager
def observe_operators(observer: OperatorObserver) -> Iterator[None]:
    """Show the operator calls of this process to `observer` while the context lasts.

    May be entered before torch is imported, and does not import it. Threads are covered when they start inside.
    """
    patches = Patches()
    instrument = _Instrument(observer)
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.current_thread())
        observer.not_covered("operators on other threads", f"threads that were there before are not seen: {names:.200}")
    try:
        patches.replace(threading.Thread, "_bootstrap_inner", instrument.thread)
        patches.when_imported("torch", lambda _module: instrument.attach(patches))
        yield
    finally:
        instrument.detach()
        patches.restore()
        observer.closed()


class _Instrument:
    def __init__(self, observer: OperatorObserver) -> None:
        self._observer = observer
        self._handler: Callable[..., Any] | None = None
        self._modes: dict[int, Any] = {}
        self._pid = os.getpid()

    def attach(self, patches: Patches) -> None:
        """torch is there: see what this thread calls from now on."""
        from torchsan.torch_internals.functionalize import observe_functionalize
        from torchsan.watch.seen_calls import SeenCalls

        self._handler = SeenCalls(self._observer, self._call).handle
        self._enter()
        observe_functionalize(patches, self._functionalized)

    def detach(self) -> None:
        """See nothing more, also on threads that still run."""
        self._handler = None
        modes, self._modes = self._modes, {}
        for mode in modes.values():
            mode.handler = None
        own = modes.get(threading.get_ident())
        if own is not None:
            from torchsan.torch_internals.dispatch import pop_mode

            pop_mode(own)

    def thread(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The first function of every new thread, with the mode around it."""

        def bootstrap(thread: threading.Thread) -> Any:
            if self._handler is None:
                return original(thread)
            mode = self._enter()
            try:
                return original(thread)
            finally:
                from torchsan.torch_internals.dispatch import pop_mode

                self._modes.pop(threading.get_ident(), None)
                pop_mode(mode)

        return bootstrap

    def _enter(self) -> Any:
        from torchsan.torch_internals.dispatch import OperatorMode, push_mode

        mode = OperatorMode(self._handler)
        self._modes[threading.get_ident()] = mode
        push_mode(mode)
        return mode

    def _functionalized(
        self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]
    ) -> Any:
        if self._handler is None or not self._observer.wants(overload):
            return run()
        from torchsan.torch_internals.functionalize import plainly

        call = OperatorCall(overload=overload, args=args, kwargs=kwargs, functionalized=True)
        return self._call(call, run, plainly)[0]

    def _call(
        self,
        call: OperatorCall,
        run: Callable[[], Any],
        looking: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> tuple[Any, Remember]:
        """Run a call that is to be looked at, `looking`; tell whether its like need not be looked at again."""
        if os.getpid() != self._pid:  # In a forked child nobody collects what is seen.
            return run(), True
        watched = True
        before = None
        try:
            with looking():
                before = self._observer.before(call)
        except FindingsError:
            raise
        except Exception as e:  # noqa: BLE001  # a check that fails ends the check, never the user's job
            watched = False
            self._failed(call, e)
        result = run()
        if not watched:
            return result, True
        try:
            with looking():
                return result, self._observer.after(call, before, result)
        except FindingsError:
            raise
        except Exception as e:  # noqa: BLE001  # as above
            self._failed(call, e)
            return result, True

    def _failed(self, call: OperatorCall, error: Exception) -> None:
        log.debug("looking at %s failed", call.overload, exc_info=True)
        self._observer.failed(call, error)
