"""Poison: what memory holds that nobody has written, and where it still does.

The pattern is the largest integer of its width, so that one pass for the maximum tells whether it is anywhere: a NaN
with all its bits set in floating point, and no bool at all. Integers may be that large; two patterns tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsan.checks.memory.guards import copied
from torchsan.checks.memory.storages import Block
from torchsan.records import Kind, Severity
from torchsan.torch_internals.wrapper import Launch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ORDINARY = {
    torch.bool: 0,
    torch.float64: 0xBFF8000000000000 - (1 << 64),
    torch.float32: 0xBFC00000 - (1 << 32),
    torch.float16: 0xBE00 - (1 << 16),
    torch.bfloat16: 0xBFC0 - (1 << 16),
}


def _component(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _integer(dtype: torch.dtype) -> torch.dtype:
    return _INTEGERS[_component(dtype).itemsize]


def telling(dtype: torch.dtype) -> bool:
    """Whether no program computes the pattern by itself: floating point of two bytes and more, and bool."""
    return dtype is torch.bool or (_component(dtype).is_floating_point and _component(dtype).itemsize > 1)


def block_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, gaps included, as integers of the width of its elements."""
    storage = tensor.untyped_storage()
    integer = _integer(tensor.dtype)
    return torch.empty(0, dtype=integer).set_(storage, 0, (storage.nbytes() // integer.itemsize,), (1,))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor as integers; complex numbers as two."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_integer(tensor.dtype))


def lay(tensor: torch.Tensor) -> None:
    """Fill the storage of a fresh tensor with the pattern."""
    whole = block_bits(tensor)
    whole.fill_(torch.iinfo(whole.dtype).max)


def leave_other(whole: torch.Tensor, where: torch.Tensor, dtype: torch.dtype) -> int:
    """Put another pattern, an ordinary number, at these positions of a storage's bits, and return it.

    Ordinary, because two NaNs come out of most arithmetic as the same one; negative, because many functions leave
    positive numbers as they are (−1.5); False for bool, because the pattern reads as True; and 1 for integers, which is
    harmless as an index and as a divisor.
    """
    value = _ORDINARY.get(_component(dtype), 1)
    whole[where] = value
    return value


def unwritten(tensor: torch.Tensor) -> torch.Tensor | None:
    """The positions, in its storage's bits, of the elements that hold the pattern; None if there are none."""
    if tensor.numel() == 0:
        return None
    values = bits(tensor)
    pattern = torch.iinfo(values.dtype).max
    if int(values.max()) != pattern:
        return None
    found = (values == pattern).nonzero()
    if found.numel() == 0 and values.dim():
        return None
    strides = torch.tensor(values.stride(), dtype=torch.int64)
    return (found * strides).sum(dim=1).add_(values.storage_offset())


def gap_positions(tensor: torch.Tensor) -> torch.Tensor:
    """The positions in its storage's bits that belong to no element."""
    gap = torch.ones_like(block_bits(tensor), dtype=torch.bool)
    elements = bits(tensor)
    torch.as_strided(gap, elements.size(), elements.stride(), 0).fill_(False)
    return gap.nonzero().squeeze(1)


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, the gaps between its elements included, in its dtype."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))


def check_gaps(block: Block, launch: Launch, name: str, tensor: torch.Tensor, report: Callable[..., bool]) -> None:
    """Report a write between the elements of a buffer, which is as wrong as one behind its end, and mend the gaps."""
    assert block.gaps is not None
    if (tuple(tensor.shape), tensor.stride()) != block.layout:
        block.gaps, block.settled = None, True  # The memory has changed hands, and what was a gap is none now.
        return
    whole = block_bits(tensor)
    pattern = torch.iinfo(whole.dtype).max
    hit = block.gaps[whole[block.gaps] != pattern]
    if not hit.numel():
        return
    whole[hit] = pattern
    count = hit.numel() // (2 if block.dtype.is_complex else 1)
    plural = "s" if count > 1 else ""
    report(
        Kind.OUT_OF_BOUNDS_WRITE,
        Severity.ERROR,
        f"{launch.kernel} writes {count} element{plural} in the gaps between the elements of {name}",
        buffer=name,
        launch=launch,
        evidence={"elements in gaps": count, "size": list(block.layout[0]), "strides": list(block.layout[1])},
    )


Bits = Mapping[Block, torch.Tensor]
"""The whole of some storages, as integers."""


class Repeat:
    """One launch that can be run again: `written` are all the storages it writes, `before` what some held before it."""

    def __init__(self, again: Callable[[], Any], written: Bits, before: Bits) -> None:
        self._again = again
        self._written = written
        self._before = before

    def run(self, unwritten: Bits, wholes: Bits) -> dict[Block, torch.Tensor]:
        """Return what the launch leaves when these positions of `wholes` hold an ordinary number instead of poison."""
        saved = {block: copied(whole) for block, whole in self._written.items()}
        originals = {block: wholes[block][where].clone() for block, where in unwritten.items()}
        try:
            for block, whole in self._written.items():
                if block in self._before:
                    whole.copy_(self._before[block])
            for block, where in unwritten.items():
                leave_other(wholes[block], where, block.dtype)
            self._again()
            return {block: copied(whole) for block, whole in self._written.items()}
        finally:
            for block, where in unwritten.items():
                wholes[block][where] = originals[block]
            for block, whole in self._written.items():
                whole.copy_(saved[block])

    def read(self, unwritten: Bits, wholes: Bits) -> set[Block]:
        """Return the storages of which what the launch leaves depends on what stands at these positions.

        One may hide another, as a NaN hides the number that is added to it, so each is tried twice: while the others
        hold poison, and while they hold ordinary numbers. A launch that does not repeat itself to the bit (atomic
        additions) is given the benefit of the doubt.
        """
        poison = {block: copied(whole) for block, whole in self._written.items()}
        ordinary = self.run(unwritten, wholes)
        if not self._differ(poison, ordinary, unwritten):
            return set()
        if any(not torch.equal(left, poison[b]) for b, left in self.run({}, wholes).items()):
            return set()
        if len(unwritten) == 1:
            return set(unwritten)
        found = set()
        for block, where in unwritten.items():
            others = {b: w for b, w in unwritten.items() if b is not block}
            if self._differ(poison, self.run({block: where}, wholes), {block: where}) or self._differ(
                self.run(others, wholes), ordinary, {block: where}
            ):
                found.add(block)
        return found or set(unwritten)

    @staticmethod
    def _differ(poison: Bits, ordinary: Bits, unwritten: Bits) -> bool:
        """Whether two runs leave different things; between them these positions went from poison to ordinary."""
        for block, first in poison.items():
            different = first != ordinary[block]
            if (where := unwritten.get(block)) is not None:
                # What the launch left alone differs because it was given differently, and shows nothing.
                given = leave_other(torch.empty(1, dtype=first.dtype), torch.tensor([0]), block.dtype)
                alone = (first[where] == torch.iinfo(first.dtype).max) & (ordinary[block][where] == given)
                different[where[alone]] = False
            if bool(different.any()):
                return True
        return False
