"""Sees each call of an operator in eager code, on every thread, forward and backward.

A call whose metadata were seen before costs one look into a dictionary. Importing it imports no torch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torchsan.errors import FindingsError
from torchsan.recording.spent import charge, spent
from torchsan.torch_internals.patches import Patches, missing
from torchsan.watch.pace import MOST_KINDS, Pace

log = logging.getLogger(__name__)

_NEW: Any = object()
"""Stands where nothing is known yet."""

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

    def prepare(self) -> None:
        """torch is there: import what it takes to look at calls. Later the program may allow no more files."""

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
def observe_operators(observer: OperatorObserver) -> Iterator[Instrument]:
    """Show the operator calls of this process to `observer` while the context lasts.

    May be entered before torch is imported, and does not import it. Threads are covered when they start inside.
    """

    def failed(error: Exception) -> None:
        observer.not_covered("operators", f"torchsan failed: {type(error).__name__}: {error}"[:300])

    patches = Patches(failed)
    instrument = Instrument(observer)
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.current_thread())
        observer.not_covered(
            "operators on other threads", f"threads that ran before torchsan began are not watched: {names:.200}"
        )
    try:
        patches.wrap("threading", "Thread._bootstrap_inner", instrument.thread)
        patches.when_imported("torch", lambda _module: instrument.attach(patches))
        _instruments.append(instrument)
        yield instrument
    finally:
        _instruments.remove(instrument)
        instrument.detach()
        patches.restore()
        observer.closed()


def between_calls() -> None:
    """To be called now and then where the program calls a compiled function, outside of PyTorch's own code."""
    for instrument in _instruments:
        instrument.between()


def expect_news() -> None:
    """Something new was compiled: see the operators that are called next."""
    for instrument in _instruments:
        instrument.expecting = True


_FAMILIAR = 1000
"""After so many calls of which none was of a new kind, operators are seen only in short stretches."""
_STRETCH = 200
"""So many calls, at least, of which none is of a new kind."""
_SECONDS = 8e-6
"""What it costs to see a call, about."""
_SHARE = 0.004
"""The part of the time that short stretches may take."""


_instruments: list[Instrument] = []
"""Those at work."""


class Instrument:
    """The modes through which calls are seen, one for each thread.

    A mode costs every call more than the operator itself may take. So on a thread that calls compiled programs it is
    taken off when nothing new comes any more, and put back for a short stretch now and then.
    """

    def __init__(self, observer: OperatorObserver) -> None:
        self._observer = observer
        self._handler: Callable[..., Any] | None = None
        self._modes: dict[int, Any] = {}
        self._pid = os.getpid()
        self._calls: SeenCalls | None = None
        self._resting: dict[int, Pace] = {}
        """Threads whose mode is off, and until when."""
        self._since = 0
        """How many calls there had been when the stretch began."""
        self.expecting = False
        """Whether something new was compiled, after which there may be other calls than before."""

    def attach(self, patches: Patches) -> None:
        """torch is there: see what this thread calls from now on, if this PyTorch has what that needs."""
        if missing(self._observer.name.removesuffix(" check")):
            return
        from torchsan.torch_internals.dispatch import observe_functionalize

        self._observer.prepare()
        self._calls = SeenCalls(self._observer, self._call)
        self._handler = self._calls.handle
        self._enter()
        observe_functionalize(patches, self._functionalized)

    def detach(self) -> None:
        """See nothing more, also on threads that still run."""
        if self._calls is not None:
            charge(self._calls.count * _SECONDS, self._observer.name)
        self._handler = None
        modes, self._modes = self._modes, {}
        for mode in modes.values():
            mode.handler = None
        own = modes.get(threading.get_ident())
        if own is not None:
            from torchsan.torch_internals.dispatch import pop_mode

            pop_mode(own)

    def between(self) -> None:
        """A compiled function is about to be called, or nothing is under way: see operators from now on, or rest."""
        calls, me = self._calls, threading.get_ident()
        if calls is None or (mode := self._modes.get(me)) is None:
            return
        from torchsan.torch_internals.dispatch import rest_mode, resume_mode

        pace = self._resting.get(me)
        if pace is not None:
            if (self.expecting or pace.allows()) and resume_mode(mode):
                del self._resting[me]
                self._since = calls.count
                self.expecting = False
            return
        familiar = calls.count - max(calls.news, self._since) > (_STRETCH if self._since else _FAMILIAR)
        if not familiar or not rest_mode(mode):
            return
        if not self._since:
            self._observer.not_covered(
                "operators between compiled calls",
                f"after {calls.count} calls, the last {_FAMILIAR} of them like earlier ones, only some are looked at",
            )
        pace = self._resting[me] = Pace(_SHARE)
        pace.spent((calls.count - self._since) * _SECONDS)

    def thread(self, original: Callable[[Any], Any], thread: threading.Thread) -> Any:
        """Run the first function of a new thread, with the mode around it."""
        if self._handler is None:
            return original(thread)
        mode = self._enter()
        try:
            return original(thread)
        finally:
            from torchsan.torch_internals.dispatch import pop_mode

            self._modes.pop(threading.get_ident(), None)
            pop_mode(mode)

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
        from torchsan.torch_internals.dispatch import plainly

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
        before: Any = _NEW
        remember: Remember = True
        name = self._observer.name
        with self._reporting(call), looking(), spent(name):
            before = self._observer.before(call)
        result = run()
        if before is not _NEW:
            with self._reporting(call), looking(), spent(name):
                remember = self._observer.after(call, before, result)
        return result, remember

    @contextmanager
    def _reporting(self, call: OperatorCall) -> Iterator[None]:
        """A check that fails ends the check, never the user's job; only a finding may."""
        try:
            yield
        except FindingsError:
            raise
        except Exception as e:
            log.debug("looking at %s failed", call.overload, exc_info=True)
            self._observer.failed(call, e)


_MOST = {True: 100, False: 1000}
"""How many kinds of arguments of an operator of PyTorch's own (True), or of another one, are looked at."""


class _Operator:
    """What is known of one overload. It holds the overload, so that its address stays its own."""

    __slots__ = ("composite", "overload", "own", "seen", "wanted")

    def __init__(self, overload: Any, wanted: bool) -> None:
        from torchsan.torch_internals.operators import is_composite, is_own

        self.overload = overload
        self.own = is_own(overload)
        self.wanted = wanted
        self.composite = self.own and is_composite(overload)
        self.seen: dict[tuple[Any, ...], Callable[[], None] | None] = {}
        """The kinds of call that were looked at; with a function, those to count."""


class SeenCalls:
    """Runs calls, those of a new kind through `look`, which tells whether the kind may be remembered.

    `handle` is the only code that runs at every operator call, so it is written for speed.
    """

    def __init__(
        self, observer: OperatorObserver, look: Callable[[OperatorCall, Callable[[], Any]], tuple[Any, Remember]]
    ) -> None:
        self._observer = observer
        self._look = look
        self._operators: dict[int, _Operator] = {}
        self._key = _key_maker()
        self._pace = Pace()
        self.count = self.news = 0
        """How many calls there were, and when the last one of a new kind was."""

    def handle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call and return its result."""
        self.count += 1
        operator = self._operators.get(id(func))
        if operator is None:
            operator = self._operators[id(func)] = _Operator(func, self._observer.wants(func))
        if operator.wanted:
            key = self._key(args, kwargs, operator.own)
            if key is not None:
                seen = operator.seen.get(key, _NEW)
                if seen is _NEW:
                    return self._first(operator, key, args, kwargs)
                if seen is not None:
                    seen()
        return func(*args, **kwargs) if kwargs else func(*args)

    def _first(self, operator: _Operator, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = operator.overload
        if operator.composite:
            # Only inference mode lets these through whole. Where they return an argument as it is, they may.
            operator.wanted = False
            self._observer.not_covered(
                str(func), "ran as one operator, as it does without gradients; the operators inside it were not checked"
            )
            return func(*args, **kwargs)
        if len(operator.seen) >= _MOST[operator.own]:
            operator.wanted = False
            self._observer.not_covered(
                str(func),
                f"called with more than {len(operator.seen)} kinds of arguments; only the first of them were checked",
            )
            return func(*args, **kwargs)
        many = len(operator.seen) >= MOST_KINDS
        if many and not self._pace.allows():
            return func(*args, **kwargs)
        self.news = self.news if many else self.count
        call = OperatorCall(overload=func, args=args, kwargs=kwargs)
        start = time.perf_counter()
        result, remember = self._look(call, lambda: func(*args, **kwargs))
        if many:
            self._pace.spent(time.perf_counter() - start)
        if remember:
            operator.seen[key] = None if remember is True else remember
        return result


Key = Callable[[tuple[Any, ...], dict[str, Any], bool], tuple[Any, ...] | None]
"""From arguments to what a call's metadata can depend on; None if there are tensors that cannot be looked at.

A float of an operator of PyTorch's own (True) counts by its value only where there is no tensor: it sizes `arange`,
while among tensors it is a factor, which optimizers change with every step.
"""


def _key_maker() -> Key:
    """Make the function once torch is there: it looks at the types of torch, which are variables of its own."""
    import torch

    from torchsan.torch_internals.dispatch import storage_pattern

    tensor, parameter = torch.Tensor, torch.nn.Parameter
    values = {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, complex}

    def add(value: Any, parts: list[Any], tensors: list[Any], floats: list[float]) -> None:
        kind = type(value)
        if kind is tensor or kind is parameter:
            tensors.append(value)
            parts += (value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad)
            if not value.is_cpu:
                parts.append(value.device)
            if value.dtype.is_complex:
                parts.append(value.is_conj())
        elif kind in values:
            parts.append(value)
        elif kind is float:
            parts.append(float)
            floats.append(value)
        elif kind is list or kind is tuple:
            parts.append(len(value))
            for element in value:
                add(element, parts, tensors, floats)
        else:
            parts.append(kind)

    def key(args: tuple[Any, ...], kwargs: dict[str, Any], own: bool) -> tuple[Any, ...] | None:
        parts: list[Any] = []
        tensors: list[Any] = []
        floats: list[float] = []
        try:
            for value in args:
                add(value, parts, tensors, floats)
            for name, value in kwargs.items():
                parts.append(name)
                add(value, parts, tensors, floats)
            if len(tensors) > 1:
                parts.append(storage_pattern(tensors))
        except (RuntimeError, NotImplementedError):  # No strides, no storage: sparse and opaque tensors.
            return None
        if not own or not tensors:
            parts += floats
        return tuple(parts)

    return key
