"""The values check: the wrong kernel in one compile and one run. Importing it imports no torch."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from torchsan.watch.observer import CallWatch, CompiledProgram, Observer

if TYPE_CHECKING:
    from torchsan.checks.exhibits import Build, Exhibits
    from torchsan.checks.values.plan import LaunchPlan
    from torchsan.recording import Writer
    from torchsan.records import Finding


class ValuesCheck(Observer):
    """Checks the first calls of each compiled program with each set of sizes."""

    name = "values check"

    def __init__(self, writer: Writer, calls: int | None, exhibits: Exhibits) -> None:
        """`calls` is how many calls of each program are checked; None for all."""
        self._writer = writer
        self._calls = calls
        self._exhibits = exhibits
        self._plans: dict[int, dict[int, LaunchPlan]] = {}
        self._reported: set[Hashable] = set()
        self._lock = threading.Lock()

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.values.plan import plan

        self._plans[id(program)] = plan(program)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.values.watch import ValuesWatch

        if self._calls is not None and call >= self._calls:
            return None
        return ValuesWatch(self._writer, program, self._plans[id(program)], self._report, probes=call == 0)

    def _report(self, program: CompiledProgram, finding: Finding, build: Build) -> None:
        """Record a finding, once for each buffer however often it is wrong."""
        key = (finding.graph, finding.kernel, finding.buffer, finding.kind)
        with self._lock:
            if key in self._reported:
                return
            self._reported.add(key)
        self._exhibits.keep(self._writer.finding(finding), build, program)
