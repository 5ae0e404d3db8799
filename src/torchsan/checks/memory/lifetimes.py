"""Whether storages are born and die as the program plans: leaks, early deaths, allocations that nobody planned."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import torch

from torchsan.checks.memory.figures import Figures
from torchsan.checks.memory.guards import span_bytes
from torchsan.checks.memory.holders import find_holder
from torchsan.checks.memory.ledger import Block, Ledger, Origin
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.instruments.observer import Values
from torchsan.instruments.program import Function, Launch
from torchsan.records import Kind, Severity
from torchsan.records.sizes import in_bytes

__all__ = ["Lifetimes"]


class Lifetimes:
    """Follows one call. What outlives its last name is judged at the end of the call, when late frees are over."""

    def __init__(self, ledger: Ledger, plan: MemoryPlan, figures: Figures, report: Callable[..., bool]) -> None:
        self._ledger = ledger
        self._plan = plan
        self._figures = figures
        self._report = report
        self._last: Launch | None = None
        self._late: list[Block] = []
        self._dropped: list[tuple[str, Block]] = []

    def allocated(self, function: str, name: str, tensor: torch.Tensor) -> Block | None:
        """A buffer is new. None if its memory is none of its own."""
        known = next(self._ledger.holding(tensor), None)
        (block,) = self._ledger.bind(function, name, tensor, Origin.PROGRAM)
        if known is None:
            self._figures.born(block)
            block.excused = (function, name) in self._plan.handed_over
            return block
        if (function, name) not in self._plan.unfollowed and known.name not in {p for _, p in self._plan.pools}:
            self._report(
                Kind.UNEXPECTED_ALLOCATION,
                Severity.ERROR,
                f"{name} was to get memory of its own and got that of {known.name}, which is still in use",
                buffer=name,
                evidence={"bytes": known.nbytes, "shared with": known.name},
            )
        return None

    def bound(self, function: str, name: str, value: Any, origin: Origin) -> None:
        """A variable got a value that the program did not allocate itself."""
        known = set(self._ledger.blocks)
        for block in self._ledger.bind(function, name, value, origin):
            if block.ref.key not in known:
                self._figures.born(block)

    def freed(self, function: str, names: tuple[str, ...]) -> list[Block]:
        """The variables were deleted. Return the storages that died of it."""
        died = []
        for block in self._ledger.free(function, names):
            self._figures.released(block)
            if block.ref.dead:
                self._died(block)
                died.append(block)
            elif block.origin is Origin.PROGRAM and not block.excused:
                self._late.append(block)
        return died

    def launched(self, function: str, launch: Launch, values: Values) -> None:
        """A launch ran: its operands must still lie in the storages that were planned for them."""
        self._last = launch
        for name, value in values.items():
            if name == launch.result:
                self.bound(function, name, value, Origin.RESULT)
            for block in self._ledger.find(function, name):
                block.last_use = launch
                if block.origin is Origin.PROGRAM and isinstance(value, torch.Tensor):
                    self._check_storage(function, launch, name, block, value)

    def left(self, function: str, outputs: Any) -> None:
        """The function returns: what it returns may live on; what it neither returns nor freed is overdue."""
        returned = set(self._ledger.holding(outputs))
        for block in returned:
            block.excused = True
        for name, blocks in self._ledger.bound(function).items():
            for block in blocks:
                # What the last launch uses may as well go with the function; nothing runs while it waits.
                waits = block.last_use is not None and block.last_use is not self._last
                followed = function == "call" and (function, name) not in self._plan.unfollowed
                if followed and block.origin is Origin.PROGRAM and not block.excused:
                    if waits:
                        self._dropped.append((name, block))
                    else:
                        self._late.append(block)
            list(self._ledger.free(function, [name]))

    def count_returned(self, outputs: Any, results: int | None) -> None:
        """Add up what the caller gets, and what is saved for backward."""
        values = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        split = len(values) if results is None else results
        mine, kept = ({b for v in part for b in self._new(v)} for part in (values[:split], values[split:]))
        self._figures.returned = sum(b.nbytes for b in mine)
        self._figures.saved = sum(b.nbytes for b in kept - mine)

    def closed(self) -> None:
        """The call is over and its variables are gone: what still lives has another holder."""
        for name, block in self._dropped:
            if block.ref.dead:
                self._overdue(name, block)
                self._died(block)
            else:
                self._late.append(block)
        for block in dict.fromkeys(self._late):
            if not block.ref.dead and not block.excused:
                self._leaked(block)

    def failed(self, error: BaseException, functions: dict[str, Function], last: int) -> None:
        """The call failed: it may be for want of a variable that was freed too early."""
        name = getattr(error, "name", None) if isinstance(error, NameError) else None
        if name is None and isinstance(error, NameError):
            # Python 3.11 names the variable of an UnboundLocalError in its text only.
            name = next((n for _, n in self._ledger.freed if f"'{n}'" in str(error)), None)
        for function, freed in list(self._ledger.freed):
            if freed != name:
                continue
            launches = functions[function].launches()
            word = re.compile(rf"\b{re.escape(freed)}\b")
            reader = next((x for x in launches if x.nth > last and any(word.search(a.text) for a in x.arguments)), None)
            after = self._ledger.freed[function, freed]
            self._report(
                Kind.EARLY_FREE,
                Severity.ERROR,
                f"{name} is freed before {reader.kernel if reader else 'its last reader'} reads it",
                buffer=freed,
                launch=reader,
                evidence={"freed after": after.kernel if after is not None else None},
            )
            return

    def _new(self, value: Any) -> list[Block]:
        return [b for b in self._ledger.holding(value) if b.origin is not Origin.GIVEN]

    def _died(self, block: Block) -> None:
        self._figures.died(block)
        self._ledger.drop(block)

    def _check_storage(self, function: str, launch: Launch, name: str, block: Block, value: torch.Tensor) -> None:
        storage = value.untyped_storage()
        if storage.nbytes() == block.nbytes and storage.data_ptr() == block.pointer and storage._cdata == block.ref.key:
            return
        if block.excused or (function, name) in self._plan.unfollowed:
            return
        if storage.nbytes() < value.storage_offset() * value.element_size() + span_bytes(value):
            kind, what = Kind.EARLY_FREE, f"frees the memory of {name} before its last reader"
        else:
            kind, what = Kind.UNEXPECTED_ALLOCATION, f"gives {name} other memory than the program planned for it"
        block.excused = True
        evidence = {"planned": block.nbytes, "actual": storage.nbytes()}
        message = f"{launch.kernel} {what}: {in_bytes(block.nbytes)} became {in_bytes(storage.nbytes())}"
        self._report(kind, Severity.ERROR, message, buffer=name, launch=launch, evidence=evidence)

    def _overdue(self, name: str, block: Block) -> None:
        kernel = block.last_use.kernel if block.last_use is not None else "its last reader"
        self._report(
            Kind.LEAKED_BUFFER,
            Severity.WARNING,
            f"{name} is not freed after {kernel}, which uses it last, but lives until the call ends",
            buffer=name,
            launch=block.last_use,
            evidence={"bytes": block.nbytes},
        )

    def _leaked(self, block: Block) -> None:
        holder = find_holder(block.ref.key)
        if holder is None:
            gc.collect()
            if block.ref.dead:
                return
        chain = holder.chain if holder is not None else ["C++ code: an autograd graph, or what an operator keeps"]
        self._report(
            Kind.LEAKED_BUFFER,
            Severity.ERROR,
            f"{block.name} ({in_bytes(block.nbytes)}) outlives the call, held by {chain[0]}",
            buffer=block.name,
            launch=block.last_use,
            source=(holder.source,) if holder is not None and holder.source is not None else (),
            evidence={"bytes": block.nbytes, "held by": chain},
        )
