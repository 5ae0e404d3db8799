"""The memory check: bounds, initialisation, reuse and lifetime of compiled buffers. Importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsan.options import Calls, calls_until, selects_call
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer

if TYPE_CHECKING:
    from torchsan.checks.collector import Collector
    from torchsan.checks.memory.patterns import GuardedMemories
    from torchsan.checks.memory.plan import MemoryPlan


class MemoryCheck(Observer):
    """Checks the first calls of each compiled program. One that wrote out of bounds keeps its guard zones for good."""

    name = "memory check"

    def __init__(self, collector: Collector, calls: Calls, *, guards: bool) -> None:
        """`calls` is how many calls of each program are checked; None for all.

        Without `guards` only lifetimes are followed.
        """
        self._collector = collector
        self._calls = calls
        self._guards = guards
        self._plans: dict[int, MemoryPlan] = {}
        self._outside: GuardedMemories | None = None

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.memory.patterns import GuardedMemories
        from torchsan.checks.memory.plan import plan

        if self._guards and self._outside is None:
            self._outside = GuardedMemories()
        self._plans[id(program)] = plan(program)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.memory.watch import LifetimesWatch, MemoryWatch

        # Without its guard zones a program that overflows would damage the memory of others from now on.
        plan = self._plans[id(program)]
        if not selects_call(self._calls, call) and not plan.learnt.overflows:
            return None
        if self._outside is None:
            return LifetimesWatch(self._collector, program, plan, call)
        return MemoryWatch(self._collector, program, plan, call, self._outside)

    def quiet(self, program: CompiledProgram, call: int) -> int:
        return 0 if self._plans[id(program)].learnt.overflows else calls_until(self._calls, call)
