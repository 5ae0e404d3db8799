"""Elements that a launch should have written and did not, and that a later launch reads.

What a kernel reads cannot be seen, so nothing is guessed: the launch is run again with another number in those
elements, and it has read them if it then leaves something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchsan.checks.memory.findings import CallFindings, elements
from torchsan.checks.memory.patterns import (
    Repeat,
    copied,
    gap_positions,
    ordinary,
    poison,
    span_bytes,
    storage_bits,
    unmistakable,
    unwritten,
    with_gaps,
)
from torchsan.checks.memory.plan import MemoryPlan, is_whole
from torchsan.checks.memory.storages import Block, Origin, StorageTable, stored_tensors
from torchsan.records import KernelKind, Kind, Severity
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import Values


@dataclass(slots=True)
class _Gaps:
    """The room that the strides of a buffer leave between its elements, and the layout that it was allocated with."""

    positions: torch.Tensor
    size: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(slots=True)
class _Poisoned:
    """What is known of a storage that was poisoned."""

    gaps: _Gaps | None
    complete: bool = False
    """Whether every element is known to have been written, or need not be."""
    certain: torch.Tensor | None = None
    """Positions that hold the pattern because a kernel wrote it there."""
    left_by: Launch | None = None
    """The launch that wrote it and left elements unwritten."""
    verified: bool = False
    """Whether that launch was run twice to be sure."""
    written: bool = False
    """Whether any launch that is over writes it."""


class Initialisation:
    """Follows one call, and what it allocates."""

    def __init__(self, table: StorageTable, plan: MemoryPlan, findings: CallFindings) -> None:
        self._table = table
        self._plan = plan
        self._findings = findings
        self._poisoned: dict[Block, _Poisoned] = {}
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
        poison(tensor)
        gaps = None
        if span_bytes(tensor) > tensor.numel() * tensor.element_size():
            gaps = _Gaps(gap_positions(tensor), tuple(tensor.shape), tensor.stride())
        self._poisoned[block] = _Poisoned(gaps)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        """Remember which operands have unwritten elements, and what the launch needs to be run again."""
        self._suspects, self._before, self._again = {}, {}, None
        self._running = (function, launch)
        fresh = False
        for argument in launch.arguments:
            block, state = self._incomplete(function, argument.base)
            if block is None or state is None or argument.base is None:
                continue
            fresh = fresh or argument.written
            tensor = values[argument.base]
            if argument.read and (launch.nth, argument.base) not in self._plan.learnt.proven:
                found = self._uncertain(block, state, with_gaps(tensor) if state.gaps is not None else tensor)
                if found is not None:
                    self._suspects[block] = found
        if not (fresh or self._suspects) or self._written(function, launch, values) is None:
            return
        for argument in launch.arguments:
            block = self._block(function, argument.base)
            if block is not None and argument.base and argument.read and argument.written:
                self._before[block] = copied(storage_bits(values[argument.base]))

    def repeatable(self, again: Callable[[], Any]) -> None:
        """The launch has run, and `again` runs it once more."""
        self._again = again

    def after(self, function: str, launch: Launch, values: Values) -> None:
        """Find what the launch left unwritten, and whether it read what others did."""
        self._running = None
        repeat = self._repeat(function, launch, values)
        written = list(dict.fromkeys(a.base for a in launch.arguments if a.written and a.base))
        doubtful: dict[Block, tuple[str, torch.Tensor]] = {}
        for name in dict.fromkeys([*written, *launch.bases]):
            block, state = self._incomplete(function, name)
            if block is None or state is None:
                continue
            found = self._uncertain(block, state, values[name])
            if found is None:
                self._clean(block, name, values[name])
            elif name not in launch.bases:
                doubtful[block] = (name, found)
        if doubtful:
            self._tell_apart(launch, doubtful, values, repeat)
        if self._suspects:
            self._judge_reader(function, launch, values, repeat)
        for name in written:
            self._check_gaps(self._block(function, name), launch, name, values[name])
        for name in launch.writes:
            for block in self._table.find(function, name):
                if block in self._poisoned:
                    self._poisoned[block].written = True
        self._suspects, self._before, self._again = {}, {}, None

    def returned(self, outputs: Any) -> None:
        """The caller gets these: what is unwritten in them counts as read.

        What a user's own kernel leaves unwritten is so in eager mode too, and the caller may know.
        """
        for tensor in stored_tensors(outputs):
            for block in self._table.holding(tensor):
                state = self._poisoned.get(block)
                if state is None or state.complete:
                    continue
                found = self._uncertain(block, state, tensor)
                if found is not None and block.function == "call":
                    users = state.left_by is not None and state.left_by.users_own
                    severity = Severity.WARNING if users else Severity.ERROR
                    self._found(block, block.name, found, "they are returned to the caller", None, severity)

    def failed(self) -> None:
        """The call failed. If in a launch that was given unwritten elements, they are why: as an index, say."""
        if self._running is None:
            return
        function, launch = self._running
        for argument in launch.arguments:
            block = self._block(function, argument.base)
            if argument.base and block in self._suspects and block is not None:
                where = self._suspects.pop(block)
                if self._poisoned[block].left_by is not None and self._sure(block):
                    self._found(block, argument.base, where, f"{launch.kernel} fails on them", launch)

    def forgotten(self, block: Block) -> None:
        """A buffer is gone, and nobody read what was not written in it."""
        self._poisoned.pop(block, None)
        for name, (count, launch) in self._left.pop(block, {}).items():
            self._findings.report(
                Kind.UNINITIALIZED_READ,
                f"{launch.kernel} leaves {count} elements of {name} unwritten, and nothing was seen to read them",
                buffer=name,
                launch=launch,
                severity=Severity.NOTE,
                evidence={"unwritten": count, "elements": block.nbytes // block.dtype.itemsize},
            )

    def _block(self, function: str, name: str | None) -> Block | None:
        blocks = self._table.find(function, name) if name is not None else ()
        return blocks[0] if len(blocks) == 1 else None

    def _incomplete(self, function: str, name: str | None) -> tuple[Block | None, _Poisoned | None]:
        """The storage of a variable and what is known of it, if it may have unwritten elements."""
        block = self._block(function, name)
        state = self._poisoned.get(block) if block is not None else None
        return (block, state) if state is not None and not state.complete else (None, None)

    def _uncertain(self, block: Block, state: _Poisoned, tensor: Any) -> torch.Tensor | None:
        """The positions that hold the pattern, but for those where a kernel is known to have written it."""
        if not isinstance(tensor, torch.Tensor) or tensor.dtype.itemsize != block.dtype.itemsize:
            state.complete = True
            return None
        found = unwritten(tensor)
        if found is not None and state.certain is not None:
            found = found[~torch.isin(found, state.certain)]
        return found if found is not None and found.numel() else None

    def _clean(self, block: Block, name: str, tensor: torch.Tensor) -> None:
        self._left.get(block, {}).pop(name, None)
        if self._poisoned[block].gaps is None and tensor.numel() * tensor.element_size() == block.nbytes:
            self._poisoned[block].complete = True
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
                if block is None or block in self._table.kept_elsewhere:
                    return None
                if (function, argument.base) in self._plan.unfollowed or not _ours_alone(block, tensor):
                    return None
                written[block] = storage_bits(tensor)
        return written

    def _repeat(self, function: str, launch: Launch, values: Values) -> Repeat | None:
        written = self._written(function, launch, values) if self._again is not None else None
        return Repeat(self._again, written, self._before) if self._again is not None and written is not None else None

    def _tell_apart(
        self,
        launch: Launch,
        doubtful: dict[Block, tuple[str, torch.Tensor]],
        values: Values,
        repeat: Repeat | None,
    ) -> None:
        """Tell elements that the launch did not write from those where it wrote the pattern's value."""
        wholes = {block: storage_bits(values[name]) for block, (name, _) in doubtful.items()}
        again = repeat.run({b: found for b, (_, found) in doubtful.items()}, wholes) if repeat is not None else {}
        for block, (name, found) in doubtful.items():
            state = self._poisoned[block]
            if block in again:
                alone = again[block][found] == ordinary(block.dtype)
                state.verified = bool(alone.any())
            else:
                alone = torch.full_like(found, unmistakable(block.dtype) and not self._plan.tainted, dtype=torch.bool)
            written, left = found[~alone], found[alone]
            if written.numel():
                state.certain = written if state.certain is None else torch.cat([state.certain, written])
            if left.numel():
                state.left_by = launch
                self._left.setdefault(block, {})[name] = (left.numel(), launch)
            else:
                self._clean(block, name, values[name])

    def _judge_reader(self, function: str, launch: Launch, values: Values, repeat: Repeat | None) -> None:
        bases = [a.base for a in launch.arguments if a.base is not None]
        names = {b: base for base in bases if (b := self._block(function, base)) in self._suspects and b is not None}
        wholes = {block: storage_bits(values[name]) for block, name in names.items()}
        read = repeat.read(self._suspects, wholes) if repeat is not None else set()
        for block, where in self._suspects.items():
            name, state = names[block], self._poisoned[block]
            whole = repeat is None and self._sure(block) and _reads_whole(launch, name, values[name])
            if whole or block in read:
                self._found(block, name, where, f"{launch.kernel} reads them", launch)
            elif repeat is not None and state.left_by is None and not state.written:
                self._plan.learnt.proven.add((launch.nth, name))

    def _sure(self, block: Block) -> bool:
        return self._poisoned[block].verified or (unmistakable(block.dtype) and not self._plan.tainted)

    def _check_gaps(self, block: Block | None, launch: Launch, name: str, tensor: torch.Tensor) -> None:
        """Report a write between the elements of a buffer, as wrong as one behind its end, and mend the gaps."""
        state = self._poisoned.get(block) if block is not None else None
        if block is None or state is None or state.gaps is None:
            return
        gaps = state.gaps
        if (tuple(tensor.shape), tensor.stride()) != (gaps.size, gaps.strides):
            state.gaps, state.complete = None, True  # The memory has changed hands, and what was a gap is none now.
            return
        whole = storage_bits(tensor)
        pattern = torch.iinfo(whole.dtype).max
        hit = gaps.positions[whole[gaps.positions] != pattern]
        if not hit.numel():
            return
        whole[hit] = pattern
        count = hit.numel() // (2 if block.dtype.is_complex else 1)
        self._findings.report(
            Kind.OUT_OF_BOUNDS_WRITE,
            f"{launch.kernel} writes {elements(count)} in the gaps between the elements of {name}",
            buffer=name,
            launch=launch,
            evidence={"elements in gaps": count, "size": list(gaps.size), "strides": list(gaps.strides)},
        )

    def _found(
        self,
        block: Block,
        name: str,
        where: torch.Tensor,
        how: str,
        reader: Launch | None,
        severity: Severity = Severity.ERROR,
    ) -> None:
        state = self._poisoned[block]
        self._left.pop(block, None)
        state.complete = True
        writer = state.left_by
        count = where.numel() // (2 if block.dtype.is_complex else 1)
        who = f"{writer.kernel} leaves" if writer is not None else "the program leaves"
        self._findings.report(
            Kind.UNINITIALIZED_READ,
            f"{who} {elements(count)} of {name} unwritten, and {how}",
            buffer=name,
            launch=reader or writer,
            severity=severity,
            evidence={
                "unwritten": count,
                "elements": block.nbytes // block.dtype.itemsize,
                "first": int(where[0]),
                "left by": writer.kernel if writer is not None else None,
                "read by": reader.kernel if reader is not None else "the caller",
            },
        )


def _reads_whole(launch: Launch, name: str, tensor: torch.Tensor) -> bool:
    arguments = [a for a in launch.arguments if a.base == name]
    plain = all(is_whole(a.text, name, tensor.numel()) and a.read and not a.written for a in arguments)
    return plain and launch.kind is KernelKind.FALLBACK


def _ours_alone(block: Block, tensor: torch.Tensor) -> bool:
    """Whether nobody else sees what a storage holds while a launch runs again: not part of anything larger."""
    if tensor.dtype.itemsize != block.dtype.itemsize:
        return False
    if block.origin is Origin.PROGRAM:
        return True
    shared = tensor.is_shared()  # type: ignore[no-untyped-call]  # torch leaves it without types
    return tensor.device.type == "cpu" and span_bytes(tensor) == block.nbytes and not shared
