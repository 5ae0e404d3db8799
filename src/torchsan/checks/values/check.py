"""The values check: the wrong kernel in one compile and one run. Importing it imports no torch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torchsan.options import Calls, calls_until, selects_call
from torchsan.recording import current_rank
from torchsan.records import Check, KernelKind, Kind, Severity
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer
from torchsan.watch.sampling import Sampled, Sampler

if TYPE_CHECKING:
    from torchsan.checks.collector import Build, Collector
    from torchsan.checks.values.plan import FunctionInputs, LaunchPlan
    from torchsan.records import Finding
    from torchsan.reference.usual import Usual


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
        self.sampler = _sampler(budget) if budget is not None else None
        self.by_sizes = self.sampler is None
        self._plans: dict[int, dict[int, LaunchPlan]] = {}
        self._functions: dict[int, dict[str, FunctionInputs]] = {}
        self._usual: dict[int, Usual] = {}
        self._called = 0
        self._times: Counter[Hashable] = Counter()
        self._first: dict[Hashable, Hashable] = {}
        """By graph, kernel, operators and kind: the key of the first finding."""

    def asked(self) -> None:
        if self.sampler is not None:
            self.sampler.look_at_everything()

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.values.plan import function_inputs, plan
        from torchsan.reference.usual import Usual

        plans = self._plans[id(program)] = plan(program)
        self._functions[id(program)] = function_inputs(program)
        self._usual[id(program)] = Usual(sampled=self.sampler is not None)
        if self.sampler is not None:
            seconds = program.record.compile_seconds or 0.0
            launches = [nth for nth, p in plans.items() if p.targets]
            self.sampler.add(id(program), program.record.label, launches, seconds)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        key = id(program)
        look = self.sampler.choose(key) if self.sampler is not None else None
        if look is None if self.sampler is not None else not selects_call(self._calls, call):
            return None
        from torchsan.checks.values.sample import Sample
        from torchsan.checks.values.watch import ValuesWatch

        sample = None
        if self.sampler is not None and look is not None:
            sample = Sample(look=look, looked=partial(self.sampler.looked, key, look))
        return ValuesWatch(
            self._collector.recorder,
            program,
            self._plans[key],
            self._report,
            functions=self._functions[key],
            usual=self._usual[key],
            probes=sample is None and call == 0,
            sample=sample,
            max_memory=self._max_memory,
        )

    def quiet(self, program: CompiledProgram, call: int) -> int:
        if self.sampler is None:
            return calls_until(self._calls, call)
        return self.sampler.quiet(id(program))

    def called(self, program: CompiledProgram, calls: int) -> None:
        if self.sampler is None:
            return
        self.sampler.called(id(program), calls)
        before, self._called = self._called, self._called + calls
        if before.bit_length() < self._called.bit_length():  # Now and then, for whoever follows, or after a kill.
            self._collector.recorder.event("sampling", self.sampler.figures())

    def close(self) -> None:
        if self.sampler is None:
            return
        recorder = self._collector.recorder
        recorder.event("sampling", self.sampler.figures())
        for sampled in self.sampler.results():
            recorder.skipped(f"{sampled.calls} calls of graph {sampled.label}", sampled_text(sampled))
        for key, times in self._times.items():
            if times > 1:
                self._collector.amend(Check.VALUES, key, partial(_seen, times))

    def _report(self, program: CompiledProgram, finding: Finding, build: Build) -> None:
        """Record a finding, once for each buffer however often it is wrong; a note does not stand for an error.

        Under a budget it is counted, and one that is new has the whole of the next calls looked at. Where a kernel that
        was generated once is launched several times, its findings follow from the first; and so do the other results of
        one that gives others with each launch, since what it adds up in any order is not told by its operators.
        """
        key = (finding.graph, finding.kernel, finding.buffer, finding.kind, finding.severity)
        if any(k.kind is KernelKind.FUSED and k.name == finding.kernel for k in program.record.kernels):
            ops = () if finding.kind is Kind.NONDETERMINISTIC else finding.ops
            same = (finding.graph, finding.kernel, ops, finding.kind, finding.severity)
            first = self._collector.find(Check.VALUES, self._first.setdefault(same, key))
            if first is not None and first.id and first.buffer != finding.buffer:
                finding = replace(finding, evidence={**finding.evidence, "follows": first.id})
        if self.sampler is None:
            self._collector.add(key, finding, build, program)
            return
        self._times[key] = times = self._times[key] + 1
        if times == 1:
            if finding.severity is Severity.ERROR:
                self.sampler.look_closely(id(program))
            self._collector.add(key, finding, build, program)
        elif times & (times - 1) == 0:  # Now and then, for a program that is killed.
            self._collector.add(key, finding, merge=lambda known, _: _seen(times, known))


def _seen(times: int, finding: Finding) -> Finding:
    return replace(finding, evidence={**finding.evidence, "times": times})


def _sampler(share: float) -> Sampler:
    """Each rank begins with other launches, so that together they look at more."""
    rank = current_rank(os.environ)
    return Sampler(share, rank=rank.rank if rank is not None else 0, world=rank.world if rank is not None else 1)


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
