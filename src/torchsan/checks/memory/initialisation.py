"""Elements that a launch should have written and did not, and that a later launch reads.

What a kernel reads cannot be seen, so nothing is guessed: the launch is run again with another number in those
elements, and it has read them if it then leaves something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchsan.checks.memory.guards import copied, span_bytes
from torchsan.checks.memory.plan import MemoryPlan, is_whole
from torchsan.checks.memory.poison import (
    Repeat,
    block_bits,
    check_gaps,
    gap_positions,
    lay,
    leave_other,
    telling,
    unwritten,
    with_gaps,
)
from torchsan.checks.memory.storages import Block, Origin, StorageTable, tensors_in
from torchsan.records import KernelKind, Kind, Severity
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import Values

Report = Callable[..., bool]


class Initialisation:
    """Follows one call. `report(kind, severity, message, buffer=…, launch=…, evidence=…)` takes what it finds."""

    def __init__(self, ledger: StorageTable, plan: MemoryPlan, report: Report) -> None:
        self._ledger = ledger
        self._plan = plan
        self._report = report
        self._suspects: dict[Block, torch.Tensor] = {}
        self._before: dict[Block, torch.Tensor] = {}
        self._left: dict[Block, dict[str, tuple[int, Launch]]] = {}
        self._again: Callable[[], Any] | None = None
        self._running: tuple[str, Launch] | None = None

    def allocated(self, block: Block, name: str, tensor: torch.Tensor) -> None:
        """A buffer is new: poison it, unless it is meant to stay as it is."""
        key = (block.function, name)
        if key in self._plan.on_purpose or key in self._plan.pools or key in self._plan.unfollowed:
            return
        lay(tensor)
        block.settled = False
        if span_bytes(tensor) > tensor.numel() * tensor.element_size():
            block.gaps = gap_positions(tensor)
            block.layout = (tuple(tensor.shape), tensor.stride())

    def before(self, function: str, launch: Launch, values: Values) -> None:
        """Remember which operands have unwritten elements, and what the launch needs to be run again."""
        self._suspects, self._before, self._again = {}, {}, None
        self._running = (function, launch)
        fresh = False
        for argument in launch.arguments:
            block = self._block(function, argument.base)
            if block is None or argument.base is None or block.settled:
                continue
            fresh = fresh or argument.written
            tensor = values[argument.base]
            if argument.read and (launch.nth, argument.base) not in self._plan.proven:
                found = self._uncertain(block, with_gaps(tensor) if block.gaps is not None else tensor)
                if found is not None:
                    self._suspects[block] = found
        if not (fresh or self._suspects) or self._written(function, launch, values) is None:
            return
        for argument in launch.arguments:
            block = self._block(function, argument.base)
            if block is not None and argument.base and argument.read and argument.written:
                self._before[block] = copied(block_bits(values[argument.base]))

    def repeatable(self, again: Callable[[], Any]) -> None:
        """The launch has run, and `again` runs it once more."""
        self._again = again

    def after(self, function: str, launch: Launch, values: Values) -> None:
        """Find what the launch left unwritten, and whether it read what others did."""
        self._running = None
        repeat = self._repeat(function, launch, values)
        doubtful: dict[Block, tuple[str, torch.Tensor]] = {}
        for name in dict.fromkeys([*(a.base for a in launch.arguments if a.written and a.base), *launch.bases]):
            block = self._block(function, name)
            if block is None or block.settled:
                continue
            found = self._uncertain(block, values[name])
            if found is None:
                self._clean(block, name, values[name])
            elif name not in launch.bases:
                doubtful[block] = (name, found)
        if doubtful:
            self._settle(launch, doubtful, values, repeat)
        if self._suspects:
            self._judge_reader(function, launch, values, repeat)
        for name in dict.fromkeys(a.base for a in launch.arguments if a.written and a.base):
            if (block := self._block(function, name)) is not None and block.gaps is not None:
                check_gaps(block, launch, name, values[name], self._report)
        self._suspects, self._before, self._again = {}, {}, None

    def returned(self, outputs: Any) -> None:
        """The caller gets these: what is unwritten in them counts as read."""
        for tensor in tensors_in(outputs):
            for block in self._ledger.holding(tensor):
                if block.origin is not Origin.PROGRAM or block.settled:
                    continue
                found = self._uncertain(block, tensor)
                if found is not None and block.function == "call":
                    self._found(block, block.name, block.left_by, found, "they are returned to the caller", None)

    def failed(self) -> None:
        """The call failed. If in a launch that was given unwritten elements, they are why: as an index, say."""
        if self._running is None:
            return
        function, launch = self._running
        for argument in launch.arguments:
            block = self._block(function, argument.base)
            if argument.base and block in self._suspects and block is not None:
                where = self._suspects.pop(block)
                if block.left_by is not None and self._sure(block):
                    self._found(block, argument.base, block.left_by, where, f"{launch.kernel} fails on them", launch)

    def forgotten(self, block: Block) -> None:
        """A buffer is gone, and nobody read what was not written in it."""
        for name, (count, launch) in self._left.pop(block, {}).items():
            self._report(
                Kind.UNINITIALIZED_READ,
                Severity.NOTE,
                f"{launch.kernel} leaves {count} elements of {name} unwritten, and nothing was seen to read them",
                buffer=name,
                launch=launch,
                evidence={"unwritten": count, "elements": block.nbytes // block.dtype.itemsize},
            )

    def _block(self, function: str, name: str | None) -> Block | None:
        blocks = self._ledger.find(function, name) if name is not None else ()
        return blocks[0] if len(blocks) == 1 else None

    def _uncertain(self, block: Block, tensor: Any) -> torch.Tensor | None:
        """The positions that hold the pattern, but for those where a kernel is known to have written it."""
        if not isinstance(tensor, torch.Tensor) or tensor.dtype.itemsize != block.dtype.itemsize:
            block.settled = True
            return None
        found = unwritten(tensor)
        if found is not None and block.certain is not None:
            found = found[~torch.isin(found, block.certain)]
        return found if found is not None and found.numel() else None

    def _clean(self, block: Block, name: str, tensor: torch.Tensor) -> None:
        self._left.get(block, {}).pop(name, None)
        if block.gaps is None and tensor.numel() * tensor.element_size() == block.nbytes:
            block.settled = True
            self._left.pop(block, None)

    def _written(self, function: str, launch: Launch, values: Values) -> dict[Block, torch.Tensor] | None:
        """The storages that the launch writes; None if it cannot be run again without anyone noticing."""
        if launch.kind is KernelKind.FALLBACK or launch.result is not None:
            return None
        written: dict[Block, torch.Tensor] = {}
        for argument in launch.arguments:
            if argument.written and argument.base is not None:
                block = self._block(function, argument.base)
                tensor = values[argument.base]
                if block is None or block.excused or (function, argument.base) in self._plan.unfollowed:
                    return None
                if tensor.dtype.itemsize != block.dtype.itemsize or not _ours_alone(block, tensor):
                    return None
                written[block] = block_bits(tensor)
        return written

    def _repeat(self, function: str, launch: Launch, values: Values) -> Repeat | None:
        if self._again is None:
            return None
        written = self._written(function, launch, values)
        return Repeat(self._again, written, self._before) if written is not None else None

    def _settle(
        self,
        launch: Launch,
        doubtful: dict[Block, tuple[str, torch.Tensor]],
        values: Values,
        repeat: Repeat | None,
    ) -> None:
        """Tell elements that the launch did not write from those where it wrote the pattern's value."""
        wholes = {block: block_bits(values[name]) for block, (name, _) in doubtful.items()}
        again = repeat.run({b: found for b, (_, found) in doubtful.items()}, wholes) if repeat is not None else {}
        for block, (name, found) in doubtful.items():
            if block in again:
                other = leave_other(torch.empty(1, dtype=wholes[block].dtype), torch.tensor([0]), block.dtype)
                alone = again[block][found] == other
                self._certain(block, found[~alone])
                left = found[alone]
                block.verified = bool(left.numel())
            elif telling(block.dtype) and not self._plan.tainted:
                left = found
            else:
                self._certain(block, found)
                left = found[:0]
            if left.numel():
                block.left_by = launch
                self._left.setdefault(block, {})[name] = (left.numel(), launch)
            else:
                self._clean(block, name, values[name])

    @staticmethod
    def _certain(block: Block, where: torch.Tensor) -> None:
        if where.numel():
            block.certain = where if block.certain is None else torch.cat([block.certain, where])

    def _judge_reader(self, function: str, launch: Launch, values: Values, repeat: Repeat | None) -> None:
        bases = [a.base for a in launch.arguments if a.base is not None]
        names = {b: base for base in bases if (b := self._block(function, base)) in self._suspects and b is not None}
        wholes = {block: block_bits(values[name]) for block, name in names.items()}
        read = repeat.read(self._suspects, wholes) if repeat is not None else set()
        for block, where in self._suspects.items():
            name = names[block]
            if repeat is not None:
                if block in read:
                    self._found(block, name, block.left_by, where, f"{launch.kernel} reads them", launch)
                elif block.left_by is None and not block.writes:
                    self._plan.proven.add((launch.nth, name))
            elif self._sure(block) and self._reads_whole(launch, name, values[name]):
                self._found(block, name, block.left_by, where, f"{launch.kernel} reads them", launch)

    def _sure(self, block: Block) -> bool:
        return block.verified or (telling(block.dtype) and not self._plan.tainted)

    @staticmethod
    def _reads_whole(launch: Launch, name: str, tensor: torch.Tensor) -> bool:
        arguments = [a for a in launch.arguments if a.base == name]
        plain = all(is_whole(a.text, name, tensor.numel()) and a.read and not a.written for a in arguments)
        return plain and launch.kind is KernelKind.FALLBACK

    def _found(
        self, block: Block, name: str, writer: Launch | None, where: torch.Tensor, how: str, reader: Launch | None
    ) -> None:
        self._left.pop(block, None)
        block.settled = True
        count = where.numel() // (2 if block.dtype.is_complex else 1)
        who = f"{writer.kernel} leaves" if writer is not None else "the program leaves"
        plural = "s" if count > 1 else ""
        self._report(
            Kind.UNINITIALIZED_READ,
            Severity.ERROR,
            f"{who} {count} element{plural} of {name} unwritten, and {how}",
            buffer=name,
            launch=reader or writer,
            evidence={
                "unwritten": count,
                "elements": block.nbytes // block.dtype.itemsize,
                "first": int(where[0]),
                "left by": writer.kernel if writer is not None else None,
                "read by": reader.kernel if reader is not None else "the caller",
            },
        )


def _ours_alone(block: Block, tensor: torch.Tensor) -> bool:
    """Whether nobody else sees what a storage holds while a launch runs again: not part of anything larger."""
    if block.origin is Origin.PROGRAM:
        return True
    shared = tensor.is_shared()  # type: ignore[no-untyped-call]  # torch leaves it without types
    return tensor.device.type == "cpu" and span_bytes(tensor) == block.nbytes and not shared
