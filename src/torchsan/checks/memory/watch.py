"""One call of one compiled program under the memory check: hands what the probes see to the parts that judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchsan.checks.collector import Collector
from torchsan.checks.memory.contents import Contents
from torchsan.checks.memory.exhibit import CallInputs
from torchsan.checks.memory.findings import CallFindings, elements
from torchsan.checks.memory.initialisation import Initialisation
from torchsan.checks.memory.lifetimes import Lifetimes
from torchsan.checks.memory.patterns import Damage, Guard, GuardedMemories, guarded
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.checks.memory.storages import Block, Figures, Origin, StorageTable
from torchsan.errors import FindingsError
from torchsan.records import Check, Kind
from torchsan.torch_internals.operators import undisturbed
from torchsan.torch_internals.wrapper import Alias, Allocate, Free, Launch, Return
from torchsan.watch.observer import CallWatch, CompiledProgram, Values


class LifetimesWatch(CallWatch):
    """Follows the storages of one call: what leaks, dies early, or was not planned, and how many bytes they are."""

    def __init__(self, collector: Collector, program: CompiledProgram, plan: MemoryPlan, call: int) -> None:
        self._recorder = collector.recorder
        self._program = program
        self._plan = plan
        self._call = call
        self._table = StorageTable()
        self._figures = Figures(plan)
        self._given = CallInputs(program)
        # The parts know each other and not this object: in a cycle what a call leaves would wait for the garbage
        # collector.
        self._findings = CallFindings(collector, program, plan, self._given)
        self._lifetimes = Lifetimes(self._table, plan, self._figures, self._findings)
        self._checked: set[str] = set()
        self._last = -1

    def enter(self, function: str, inputs: Values) -> None:
        if function == "call":
            self._given.note(inputs)
        for name, value in inputs.items():
            self._lifetimes.bound(function, name, value, Origin.GIVEN)

    def allocated(self, function: str, step: Allocate, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            with undisturbed():
                value = self._begin(function, step, value)
            self._figures.step(step.line)
        return value

    def _begin(self, function: str, step: Allocate, value: torch.Tensor) -> torch.Tensor:
        """A buffer is new; return what takes its place."""
        self._lifetimes.allocated(function, step.name, value)
        return value

    def aliased(self, function: str, step: Alias, value: Any) -> None:
        self._lifetimes.bound(function, step.name, value, Origin.RESULT)

    def freed(self, function: str, step: Free) -> None:
        for block in self._lifetimes.freed(function, step.names):
            self._end(block)
        self._figures.step(step.line)

    def _end(self, block: Block) -> None:
        """A storage died."""

    def after(self, function: str, launch: Launch, values: Values) -> None:
        self._last = launch.nth
        self._lifetimes.launched(function, launch, values)
        self._figures.step(launch.line)
        self._checked.update(launch.writes)

    def leave(self, function: str, outputs: Any) -> None:
        if function == "call":
            self._lifetimes.count_returned(outputs, self._program.results)
        self._lifetimes.left(function, outputs)

    def close(self, error: BaseException | None) -> None:
        ref = self._program.ref
        self._recorder.checked(ref.id, ref.direction, sorted(self._checked), Check.MEMORY)
        if error is not None:
            self._lifetimes.failed(error, self._program.model.functions, self._last)
        else:
            self._recorder.event("memory", self._figures.event(ref, self._call))
            self._lifetimes.closed()


class MemoryWatch(LifetimesWatch):
    """Follows the bounds, the initialisation and the contents of the buffers of one call as well."""

    def __init__(
        self,
        collector: Collector,
        program: CompiledProgram,
        plan: MemoryPlan,
        call: int,
        outside: GuardedMemories,
    ) -> None:
        """`outside` are the guarded buffers that programs returned; what this one returns is added."""
        super().__init__(collector, program, plan, call)
        self._outside = outside
        self._guards: dict[Block, Guard] = {}
        self._initialisation = Initialisation(self._table, plan, self._findings)
        self._contents = Contents(self._table, plan, self._findings)

    def enter(self, function: str, inputs: Values) -> None:
        super().enter(function, inputs)
        for name in inputs:
            for block in self._table.find(function, name):
                memory = self._outside.get(block.pointer)
                if memory is not None:
                    self._guards.setdefault(block, Guard(memory))
        if function != "call":
            # A subgraph may write what it is given; what it is called with is not followed into it.
            self._contents.forget_all()

    def _begin(self, function: str, step: Allocate, value: torch.Tensor) -> torch.Tensor:
        if not self._can_guard(function, step, value):
            return super()._begin(function, step, value)
        value, guard = guarded(value)
        block = self._lifetimes.allocated(function, step.name, value)
        if block is not None:
            self._guards[block] = guard
            self._initialisation.allocated(block, step.name, value)
        return value

    def aliased(self, function: str, step: Alias, value: Any) -> None:
        super().aliased(function, step, value)
        with undisturbed():
            self._contents.aliased(function, step, value)

    def freed(self, function: str, step: Free) -> None:
        self._contents.freed(function, step.names)
        super().freed(function, step)

    def _end(self, block: Block) -> None:
        self._initialisation.forgotten(block)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        with undisturbed():
            self._contents.before(function, launch, values)
            self._initialisation.before(function, launch, values)

    def repeatable(self, function: str, launch: Launch, again: Callable[..., Any]) -> None:
        self._initialisation.repeatable(again)

    def after(self, function: str, launch: Launch, values: Values) -> None:
        super().after(function, launch, values)
        self._check_guards(function, launch, values)
        with undisturbed():
            self._initialisation.after(function, launch, values)
            self._contents.after(function, launch, values)
        if self._plan.learnt.overflows:  # Run again, the launch has written there again.
            for _ in self._damages(function, values):
                pass

    def returning(self, function: str, step: Return, values: Values) -> None:
        with undisturbed():
            self._contents.returned(function, values)

    def leave(self, function: str, outputs: Any) -> None:
        if function == "call":
            with undisturbed():
                self._initialisation.returned(outputs)
        else:
            self._contents.forget_all()
        for block in self._table.holding(outputs):
            memory = self._guards[block].memory() if block in self._guards else None
            if memory is not None:
                self._outside[block.pointer] = memory
        super().leave(function, outputs)

    def close(self, error: BaseException | None) -> None:
        # A finding that was raised is no failure of the program.
        if isinstance(error, Exception) and not isinstance(error, FindingsError):
            self._initialisation.failed()
        super().close(error)

    def _can_guard(self, function: str, step: Allocate, value: torch.Tensor) -> bool:
        key = (function, step.name)
        if step.pool is not None or value.numel() == 0 or key in self._plan.handed_over | self._plan.unguarded:
            return False
        if value.device.type != "cpu" or value.is_pinned() or not value.untyped_storage().resizable():
            what = f"{step.name} of graph {self._program.record.label}"
            self._recorder.skipped(what, f"guard zones are for plain CPU memory, and it is on {value.device}")
            return False
        return True

    def _check_guards(self, function: str, launch: Launch, values: Values) -> None:
        for name, block, damage in self._damages(function, values):
            self._plan.learnt.overflows = True
            self._out_of_bounds(launch, block, name, damage)

    def _damages(self, function: str, values: Values) -> Iterator[tuple[str, Block, Damage]]:
        """What was written into guard zones since the last time; they are whole again afterwards."""
        for name in values:
            for block in self._table.find(function, name):
                guard = self._guards.get(block)
                damage = guard.damage() if guard is not None else None
                if damage is not None:
                    yield name, block, damage

    def _out_of_bounds(self, launch: Launch, block: Block, name: str, damage: Damage) -> None:
        """Report that a launch wrote into the guard zones of a buffer that it was given."""
        size = block.dtype.itemsize
        evidence: dict[str, Any] = {
            "elements": block.nbytes // size,
            "dtype": str(block.dtype).removeprefix("torch."),
        }
        parts = []
        for side, stored, farthest in (
            ("before the start", damage.before, damage.farthest_before),
            ("after the end", damage.after, damage.farthest_after),
        ):
            if stored:
                count = -(-stored // size)
                parts.append(f"{elements(count)} {side}")
                evidence |= {f"elements {side}": count, f"farthest byte {side}": farthest}
        self._findings.report(
            Kind.OUT_OF_BOUNDS_WRITE,
            f"{launch.kernel} writes {' and '.join(parts)} of {name}",
            buffer=name,
            launch=launch,
            evidence=evidence | self._findings.kernel_source(launch),
        )
