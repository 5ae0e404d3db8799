"""One call of a compiled program under observation: hands what its probes send to the watches, and times launches."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchsan.errors import FindingsError
from torchsan.options import NEVER, Calls, calls_until, selects_call
from torchsan.recording.flight import CHECKING, NOTHING, RUNNING
from torchsan.recording.spent import spent
from torchsan.records import CallCount, CallTimes, GraphRef, LaunchTime
from torchsan.torch_internals.wrapper import Launch, Return
from torchsan.watch.forecast import CallOutlook, Outlook
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer, Values
from torchsan.watch.pace import MOST_KINDS, Pace

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.recording.flight import Flight
    from torchsan.watch.sampling import Sampler

log = logging.getLogger(__name__)

Failed = Callable[[CompiledProgram, str, Exception], None]
"""Told when a watch failed: on which program, which observer, how."""


_running = threading.local()


def current_call(graph: GraphRef) -> int | None:
    """Which call of a graph, from 0, is running on this thread, if it is observed; None if none is."""
    found: dict[GraphRef, int] = getattr(_running, "calls", {})
    return found.get(graph)


_LONGEST_REST = 0.05
"""Seconds."""


@dataclass(slots=True)
class _Sizes:
    """One set of sizes that a program was called with: how often, and up to which call nobody wants to look."""

    calls: int = 0
    quiet: int = 0


@contextmanager
def _numbered(graph: GraphRef, number: int) -> Iterator[None]:
    before: dict[GraphRef, int] = getattr(_running, "calls", {})
    _running.calls = before | {graph: number}
    try:
        yield
    finally:
        _running.calls = before


_all: weakref.WeakSet[ProbedProgram] = weakref.WeakSet()


def wake_all() -> None:
    """Have every program show its next call to its observers, however sure they were that they do not want it."""
    for program in tuple(_all):
        program.wake()


class ProbedProgram:
    """Stands in for a generated module's `call`: observes the calls that someone wants, runs the others as they are."""

    def __init__(
        self,
        program: CompiledProgram,
        original: Callable[[list[Any]], Any],
        probed: dict[str, Callable[..., Any]],
        observers: Iterable[Observer],
        failed: Failed,
        flight: Flight | None = None,
        *,
        pace: Pace | None = None,
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        """`flight` is told which launch runs or is checked; `pace` is for sets of sizes beyond the first.

        `poll` is called now and then, to look for what users ask.
        """
        self._program = program
        self._original = original
        self._flight = flight
        self._probed = probed
        self._observers: tuple[Observer, ...] = tuple(observers)
        self._failed = failed
        self._pace = pace or Pace()
        self._poll = poll
        self._asked = False
        """Whether the next call is to be shown to all as if it were the first."""
        self._idle = self._rested = 0
        """How many calls run as they are before anyone is asked; and how many in this rest."""
        self._sets: dict[tuple[int, ...], _Sizes] = {}
        watching = [o for o in self._observers if type(o).watch is not Observer.watch]
        self._by_sizes = any(o.by_sizes for o in watching)
        self._sized: tuple[int, ...] | None = None if self._by_sizes else ()
        self._total = 0
        self._counting = [o for o in self._observers if type(o).called is not Observer.called]

        _all.add(self)

    def wake(self) -> None:
        """Show the next call to the observers as if it were the first. Safe in a handler of a signal."""
        if self._observers:
            left, self._idle = self._idle, 0
            self._rested -= left
            self._asked = True

    def detach(self) -> None:
        """From now on every call runs as it is; one under way is watched to its end."""
        self._count(self._rested - self._idle)
        self._observers = ()
        self._idle = NEVER

    def __call__(self, args: list[Any]) -> Any:
        if self._idle:  # Most calls end here, so nothing else is done.
            self._idle -= 1
            return self._original(args)
        observers = self._observers
        if not observers:
            return self._original(args)
        self._poll()
        known = self._sizes(args)
        number = self._count(self._rested + 1) - 1
        self._rested = 0
        sampled = known is None and self._pace.allows()
        first, self._asked = sampled or self._asked, False
        # Each set of sizes counts for itself: a kernel may be right for one and wrong for the next.
        call = number if known is None else known.calls
        if known is not None:
            known.calls += 1
        quiet = 0 if first else self._quiet(known, call)
        start = time.perf_counter()
        if not quiet:
            call = 0 if first else call
            watches = [(o.name, w) for o in observers if (w := self._open(o, call)) is not None]
            if watches:
                result = self._watched(args, watches, number, later=call > 0)
                if sampled:
                    self._pace.spent(time.perf_counter() - start)
                return result
        result = self._original(args)
        if quiet and (known is None or not self._sized):
            # Ask nobody until someone wants a call, or until as many calls were made again, or for a while.
            most = int(_LONGEST_REST / max(time.perf_counter() - start, 1e-6))
            self._idle = self._rested = min(quiet - 1, self._total, most)
            if known is not None:
                known.calls += self._idle
        return result

    def _quiet(self, known: _Sizes | None, call: int) -> int:
        """For how many calls, this one among them, nobody wants to look."""
        if known is not None and known.quiet > call:
            return known.quiet - call
        quiet = min((o.quiet(self._program, call) for o in self._observers), default=NEVER)
        if known is not None and self._by_sizes:  # Who does not go by sizes may go by the clock.
            known.quiet = call + quiet
        return quiet

    def _sizes(self, args: list[Any]) -> _Sizes | None:
        """The set of sizes of a call; None for one of too many."""
        if self._sized is None:  # A generated program takes numbers at the same places in every call.
            self._sized = tuple(n for n, a in enumerate(args) if type(a) is int)
        sizes = tuple([args[n] for n in self._sized])
        known = self._sets.get(sizes)
        if known is None and len(self._sets) < MOST_KINDS:
            known = self._sets[sizes] = _Sizes()
        return known

    def _count(self, calls: int) -> int:
        self._total += calls
        for observer in self._counting:
            observer.called(self._program, calls)
        return self._total

    def _watched(self, args: list[Any], watches: list[tuple[str, CallWatch]], number: int, *, later: bool) -> Any:
        mark = None if self._flight is None else self._flight.of_call(self._program.ref, number)
        running = ProbedCall(self._program, "call", self._probed, watches, self._failed, mark, later=later)
        with _numbered(self._program.ref, number):
            try:
                result = running.run(self._original, args)
            except BaseException as e:
                running.tell("close", e)
                raise
            else:
                running.tell("close", None)
            finally:
                running.mark(NOTHING)
        return result

    def _open(self, observer: Observer, call: int) -> CallWatch | None:
        try:
            with spent(observer.name, later=call > 0):
                return observer.watch(self._program, call)
        except Exception as e:  # a check that fails ends the check, never the user's job
            log.debug("%s failed", observer.name, exc_info=True)
            self._failed(self._program, observer.name, e)
            return None


_EVENTS = ("allocated", "aliased", "freed")
"""What a call is told of that nobody may want to hear."""


def _listens(watch: CallWatch, method: str) -> bool:
    return getattr(type(watch), method) is not getattr(CallWatch, method)


class ProbedCall:
    """One function of the program, running. The methods are what the probes call."""

    __slots__ = (
        *("_at", "_failed", "_function", "_heard", "_later", "_launched", "_launches", "_mark", "_only", "_probed"),
        *("_program", "_ref", "_steps", "_watches"),
    )

    def __init__(
        self,
        program: CompiledProgram,
        function: str,
        probed: dict[str, Callable[..., Any]],
        watches: list[tuple[str, CallWatch]],
        failed: Failed,
        mark: Callable[[int, int], None] | None = None,
        *,
        later: bool = False,
    ) -> None:
        """`mark` is told what is done, running or checking, and of which launch; `later` is no first call."""
        self._ref = program.ref
        self._at: int | None = None
        """The launch that is looked at."""
        self._later = later
        self._program = program
        self._function = function
        self._mark = mark
        self._probed = probed
        self._watches = watches
        self._failed = failed
        self._steps = program.model.functions[function].walk()
        self._launched = 0.0
        self._launches = {x.nth: x for x in program.model.functions[function].launches()}
        wanted = [watch.only for _, watch in watches]
        self._only = None if None in wanted else frozenset[int]().union(*(only for only in wanted if only is not None))
        self._heard = frozenset(m for m in _EVENTS if any(_listens(watch, m) for _, watch in watches))

    def run(self, original: Callable[..., Any], args: Any) -> Any:
        """Run the probed twin of `original`, which may be a method."""
        probed = self._probed[self._function]
        if self._program.model.functions[self._function].method:
            return probed(getattr(original, "__self__", None), args, self)
        return probed(args, self)

    def enter(self, inputs: dict[str, Any]) -> None:
        self.tell("enter", self._function, inputs)

    def allocated(self, number: int, value: Any) -> Any:
        if "allocated" not in self._heard:
            return value
        for entry in tuple(self._watches):
            twin = self._ask(entry, "allocated", self._function, self._steps[number], value)
            value = value if twin is None else twin
        return value

    def aliased(self, number: int, value: Any) -> None:
        if "aliased" in self._heard:
            self.tell("aliased", self._function, self._steps[number], value)

    def freed(self, number: int) -> None:
        if "freed" in self._heard:
            self.tell("freed", self._function, self._steps[number])

    def before(self, nth: int, operands: tuple[Any, ...]) -> None:
        if self._only is not None and nth not in self._only:
            return
        launch = self._launches[nth]
        self._at = nth
        self.mark(CHECKING, nth)
        self.tell("before", self._function, launch, dict(zip(launch.operands, operands, strict=True)))
        self.mark(RUNNING, nth)
        self._launched = time.perf_counter()

    def after(self, nth: int, values: tuple[Any, ...], again: Callable[..., Any]) -> None:
        if self._only is not None and nth not in self._only:
            return
        seconds = time.perf_counter() - self._launched
        self.mark(CHECKING, nth)
        launch = self._launches[nth]
        self.tell("timed", self._function, launch, seconds)
        self.tell("repeatable", self._function, launch, again)
        names = dict.fromkeys([*launch.operands, *launch.writes])
        self.tell("after", self._function, launch, dict(zip(names, values, strict=True)))
        self._at = None
        if self._only is not None:  # What runs next is none of those that are marked.
            self.mark(NOTHING)

    def leave(self, outputs: Any, number: int, values: tuple[Any, ...]) -> None:
        step = self._steps[number]
        assert isinstance(step, Return)
        self.tell("returning", self._function, step, dict(zip(step.names, values, strict=True)))
        self.tell("leave", self._function, outputs)

    def call(self, function: str, original: Callable[..., Any], args: Any) -> Any:
        """A subgraph or partition is called: run it probed too, if it is still the generated function itself."""
        if function not in self._probed:
            return original(args)
        if getattr(original, "__name__", None) != function:
            replaced = RuntimeError("it was replaced, as CUDA graphs do, and ran unobserved")
            self._failed(self._program, function, replaced)
            return original(args)
        probed, mark = self._probed, self._mark
        call = ProbedCall(self._program, function, probed, self._watches, self._failed, mark, later=self._later)
        return call.run(original, args)

    def mark(self, doing: int, nth: int = 0) -> None:
        """Note what is done, for when it kills the process."""
        if self._mark is not None:
            self._mark(doing, nth)

    def tell(self, method: str, *args: Any) -> None:
        """Pass on to every watch. One that fails is dropped for the rest of the call, and reported."""
        for entry in tuple(self._watches):
            self._ask(entry, method, *args)

    def _ask(self, entry: tuple[str, CallWatch], method: str, *args: Any) -> Any:
        if not _listens(entry[1], method):
            return None
        try:
            with spent(entry[0], self._ref, self._at, later=self._later):
                return getattr(entry[1], method)(*args)
        except FindingsError:
            raise
        except Exception as e:  # a check that fails ends the check, never the user's job
            log.debug("%s failed", entry[0], exc_info=True)
            self._watches.remove(entry)
            self._failed(self._program, entry[0], e)
            return None


class Timer(Observer):
    """Times the launches of the calls that the checks look at, and tells of those that they do not."""

    name = "times"

    def __init__(self, writer: Recorder, calls: Calls, *, checked: bool, sampler: Sampler | None = None) -> None:
        """`calls` are those of each graph that are timed, and, if they are `checked`, looked at.

        With a `sampler`, that knows which are looked at.
        """
        self._sampler = sampler
        self.by_sizes = sampler is None
        self._writer = writer
        self._timed = calls
        self._checked = checked
        self._labels: dict[GraphRef, str] = {}
        self._seen: Counter[GraphRef] = Counter()
        self._replaced: Counter[GraphRef] = Counter()
        self._looked: Counter[GraphRef] = Counter()
        self._outlook = Outlook(lambda f: writer.event("forecast", f), calls) if checked else None

    def called(self, program: CompiledProgram, calls: int) -> None:
        ref = program.ref
        before, self._seen[ref] = self._seen[ref], self._seen[ref] + calls
        self._labels[ref] = program.record.label
        # Now and then, for a program that is killed; the final counts are recorded when the session ends.
        if before.bit_length() < self._seen[ref].bit_length():
            self._record(ref)

    def replaced(self, program: CompiledProgram, calls: int) -> None:
        self._replaced[program.ref] += calls
        self._record(program.ref)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        if not selects_call(self._timed, call):
            return None
        self._looked[program.ref] += self._checked
        self._record(program.ref)
        launches = sum(1 for _ in program.model.functions["call"].launches())
        outlook = CallOutlook(self._outlook, program.ref, call, launches) if self._outlook is not None else None
        return _TimedCall(self._writer, program, call, outlook)

    def quiet(self, program: CompiledProgram, call: int) -> int:
        return calls_until(self._timed, call)

    def _record(self, ref: GraphRef) -> None:
        checked = self._looked[ref] if self._sampler is None else self._sampler.calls_of(f"{ref.id} {ref.direction}")
        seen = self._seen[ref] + self._replaced[ref]
        count = CallCount(graph=ref.id, direction=ref.direction, seen=seen, checked=checked)
        self._writer.event("calls", count)

    def close(self) -> None:
        for ref in self._seen:
            self._record(ref)
        for ref, seen in self._seen.items() if self._checked else ():
            count = seen - self._looked[ref]
            calls = "1 call" if count == 1 else f"{count} calls"
            those = f"the first {self._timed} calls" if isinstance(self._timed, int) else f"calls {self._timed}"
            reason = (
                f"only {those} of a graph with the same input sizes are checked, and after {MOST_KINDS} different "
                "sizes only a few more; --calls N or --calls all checks more"
            )
            if count:
                self._writer.skipped(f"{calls} of graph {self._labels[ref]}", reason)


@dataclass(slots=True)
class _Sum:
    launches: int = 0
    seconds: float = 0.0
    read: int = 0
    written: int = 0


class _TimedCall(CallWatch):
    def __init__(self, writer: Recorder, program: CompiledProgram, call: int, outlook: CallOutlook | None) -> None:
        self._outlook = outlook
        self._writer = writer
        self._ref = program.ref
        self._call = call
        self._sums: dict[int, _Sum] = {}

    def timed(self, function: str, launch: Launch, seconds: float) -> None:
        total = self._sums.setdefault(launch.nth, _Sum())
        total.launches += 1
        total.seconds += seconds
        if self._outlook is not None:
            self._outlook.launched(seconds)

    def after(self, function: str, launch: Launch, values: Values) -> None:
        total = self._sums[launch.nth]
        total.read += sum(_bytes(values[name]) for name in launch.reads)
        total.written += sum(_bytes(values[name]) for name in launch.writes)
        if self._outlook is not None:
            self._outlook.checked()

    def close(self, error: BaseException | None) -> None:
        launches = tuple(
            LaunchTime(nth=nth, launches=s.launches, seconds=s.seconds, bytes_read=s.read, bytes_written=s.written)
            for nth, s in self._sums.items()
        )
        times = CallTimes(graph=self._ref.id, direction=self._ref.direction, call=self._call, launches=launches)
        self._writer.event("times", {"times": times})
        if self._outlook is not None and error is None:
            self._outlook.over()


def _bytes(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(map(_bytes, value))
    # Not `nbytes`, which sparse tensors refuse.
    return int(value.numel() * value.element_size()) if hasattr(value, "element_size") else 0
