"""The values check: the wrong kernel in one compile and one run. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsan.watch.observer import CallWatch, CompiledProgram, Observer

if TYPE_CHECKING:
    from torchsan.checks.collector import Build, Collector
    from torchsan.checks.values.plan import LaunchPlan
    from torchsan.records import Finding


class ValuesCheck(Observer):
    """Checks the first calls of each compiled program with each set of sizes."""

    name = "values check"

    def __init__(self, collector: Collector, calls: int | None) -> None:
        """`calls` is how many calls of each program are checked; None for all."""
        self._collector = collector
        self._calls = calls
        self._plans: dict[int, dict[int, LaunchPlan]] = {}

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.values.plan import plan

        self._plans[id(program)] = plan(program)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.values.watch import ValuesWatch

        if self._calls is not None and call >= self._calls:
            return None
        plans = self._plans[id(program)]
        return ValuesWatch(self._collector.recorder, program, plans, self._report, probes=call == 0)

    def _report(self, program: CompiledProgram, finding: Finding, build: Build) -> None:
        """Record a finding, once for each buffer however often it is wrong; a note does not stand for an error."""
        key = (finding.graph, finding.kernel, finding.buffer, finding.kind, finding.severity)
        self._collector.add(key, finding, build, program)
