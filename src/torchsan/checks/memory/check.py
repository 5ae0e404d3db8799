"""The memory check: bounds, initialisation, reuse and lifetime of compiled buffers. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsan.watch.observer import CallWatch, CompiledProgram, Observer

if TYPE_CHECKING:
    from torchsan.checks.exhibits import Exhibits
    from torchsan.checks.memory.findings import Reporter
    from torchsan.checks.memory.guards import GuardRegistry
    from torchsan.checks.memory.plan import MemoryPlan
    from torchsan.recording import Writer


class MemoryCheck(Observer):
    """Checks the first calls of each compiled program. One that wrote out of bounds keeps its guard zones for good."""

    name = "memory check"

    def __init__(
        self, writer: Writer, calls: int | None, exhibits: Exhibits, *, guards: bool = True, fail_fast: bool = False
    ) -> None:
        """`calls` is how many calls of each program are checked; None for all.

        Without `guards` only lifetimes are followed. With `fail_fast` the first error is raised where it happens.
        """
        self._writer = writer
        self._calls = calls
        self._exhibits = exhibits
        self._guards = guards
        self._fail_fast = fail_fast
        self._plans: dict[int, MemoryPlan] = {}
        self._reporter: Reporter | None = None
        self._registry: GuardRegistry | None = None

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.memory.findings import Reporter
        from torchsan.checks.memory.guards import GuardRegistry
        from torchsan.checks.memory.plan import plan

        if self._reporter is None:
            self._reporter = Reporter(self._writer, self._fail_fast, self._exhibits)
            self._registry = GuardRegistry() if self._guards else None
        self._plans[id(program)] = plan(program)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.memory.watch import MemoryWatch

        assert self._reporter is not None
        # Without its guard zones such a program would damage the memory of others from now on.
        plan = self._plans[id(program)]
        overflows = plan.serial in self._reporter.overflowing
        if self._calls is not None and call >= self._calls and not overflows:
            return None
        return MemoryWatch(self._writer, self._reporter, program, plan, call, self._registry)
