"""The values check: the wrong kernel in one compile and one run. Importing it imports no torch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torchsan.options import Calls, calls_until, selects_call
from torchsan.recording import current_rank
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer
from torchsan.watch.sampling import Sampled, Sampler

if TYPE_CHECKING:
    from torchsan.checks.collector import Build, Collector
    from torchsan.checks.values.plan import LaunchPlan
    from torchsan.records import Finding


class ValuesCheck(Observer):
    """Checks the first calls of each compiled program with each set of sizes."""

    name = "values check"

    def __init__(
        self, collector: Collector, calls: Calls, *, budget: float | None = None, max_memory: int | None = None
    ) -> None:
        """`calls` are those of each program that are checked. With a `budget`, launches are sampled instead.

        A launch whose check would take more than `max_memory` bytes for copies is left out.
        """
        self._collector = collector
        self._calls = calls
        self._max_memory = max_memory
        self.sampler = Sampler(budget, seed=_seed()) if budget is not None else None
        self._plans: dict[int, dict[int, LaunchPlan]] = {}
        self._alarms: set[object] = set()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Under a budget SIGUSR1 asks for the whole of the next calls, unless the program has a use for it."""
        number = getattr(signal, "SIGUSR1", None)
        free = number is not None and signal.getsignal(number) is signal.SIG_DFL
        if (
            number is None
            or self.sampler is None
            or not free
            or threading.current_thread() is not threading.main_thread()
        ):
            yield
            return

        sampler = self.sampler

        def handle(*_: object) -> None:
            sampler.look_at_everything()

        signal.signal(number, handle)
        try:
            yield
        finally:
            if signal.getsignal(number) is handle:
                signal.signal(number, signal.SIG_DFL)

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.values.plan import plan

        plans = self._plans[id(program)] = plan(program)
        if self.sampler is not None:
            self.sampler.add(id(program), program.record.label, [nth for nth, p in plans.items() if p.targets])

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.values.watch import ValuesWatch

        plans = self._plans[id(program)]
        make = partial(ValuesWatch, self._collector.recorder, program, plans, self._report, max_memory=self._max_memory)
        if self.sampler is not None:
            chosen = self.sampler.choose(id(program))
            looked = partial(self.sampler.looked, id(program), chosen)
            return make(probes=False, only=chosen, looked=looked) if chosen else None
        return make(probes=call == 0) if selects_call(self._calls, call) else None

    def quiet(self, program: CompiledProgram, call: int) -> int:
        return calls_until(self._calls, call) if self.sampler is None else 0

    def close(self) -> None:
        if self.sampler is None:
            return
        recorder = self._collector.recorder
        recorder.event("sampling", {"share": self.sampler.cost, "seconds": self.sampler.spent})
        for sampled in self.sampler.results():
            recorder.skipped(f"{sampled.calls} calls of graph {sampled.label}", sampled_text(sampled))

    def _report(self, program: CompiledProgram, finding: Finding, build: Build) -> None:
        """Record a finding, once for each buffer however often it is wrong; a note does not stand for an error."""
        key = (finding.graph, finding.kernel, finding.buffer, finding.kind, finding.severity)
        self._collector.add(key, finding, build, program)
        if self.sampler is not None and key not in self._alarms:
            self._alarms.add(key)
            self.sampler.look_closely(id(program))


def _seed() -> int:
    """Another one for each rank, so that together they look at more."""
    rank = current_rank(os.environ)
    return rank.rank if rank is not None else 0


def sampled_text(sampled: Sampled) -> str:
    """Return how much of a program sampling has covered, in words."""
    kernels = "1 kernel" if sampled.launches == 1 else f"{sampled.launches} kernels"
    if sampled.every is None:
        return f"sampled under --budget: {sampled.looks} launches of {kernels}, and one or more never"
    seen = ", ".join(f"{sampled.seen(n):.0%} for one call in {n}" for n in (1, 10, 100))
    return (
        f"sampled under --budget: each of {kernels} about every {sampled.every:.0f} calls; "
        f"an error would have been seen with a probability of {seen}"
    )
