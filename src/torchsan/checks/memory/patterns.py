"""What marks memory: guard zones around a buffer, which show a write outside of it, and poison in one, which shows
what nobody has written.

Poison is the largest integer of its width, so that one pass for the maximum tells whether it is anywhere: a NaN with
all its bits set in floating point, and no bool at all. Integers may be that large; two patterns tell them apart.
"""

from __future__ import annotations

import math
import mmap
import random
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchsan.checks.memory.storages import Block

_SMALL, _LARGE = 1024, 4096
"""Bytes of a zone: several rows of vectors, and a page for buffers where a stray store may land further away."""
_BIG = 1 << 16
_PAGES = 1 << 16

# Random bytes: no kernel stores them by chance, as it might store zeros.
_PATTERN = np.frombuffer(random.Random(0).randbytes(_LARGE), dtype=np.uint8)
_TEXT = {size: _PATTERN[:size].tobytes() for size in (_SMALL, _LARGE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What was written outside of a buffer: bytes changed before and after it, and the farthest of them."""

    before: int
    after: int
    farthest_before: int
    farthest_after: int


Memory = np.ndarray[Any, np.dtype[np.uint8]]
"""A buffer with the zones around it."""
GuardedMemories = weakref.WeakValueDictionary[int, Memory]
"""Those of buffers that left their program, by address: whoever is given one is watched with its zones too."""


class Guard:
    """The zones of one buffer. Knows its memory without keeping it alive."""

    def __init__(self, memory: Memory) -> None:
        self.memory = weakref.ref(memory)
        self.margin = _SMALL if memory.nbytes < _BIG + 2 * _SMALL else _LARGE

    def damage(self) -> Damage | None:
        """Return what was written outside of the buffer since the last time, and mend the zones; None if nothing."""
        memory = self.memory()
        if memory is None:
            return None
        text = _TEXT[self.margin]
        head, tail = memory[: self.margin], memory[-self.margin :]
        if head.tobytes() == text and tail.tobytes() == text:
            return None
        pattern = _PATTERN[: self.margin]
        below, above = np.flatnonzero(head != pattern), np.flatnonzero(tail != pattern)
        found = Damage(
            before=_stored(below),
            after=_stored(above),
            farthest_before=int(self.margin - below[0]) if below.size else 0,
            farthest_after=int(above[-1]) + 1 if above.size else 0,
        )
        head[:], tail[:] = pattern, pattern
        return found


def _stored(changed: np.ndarray[Any, np.dtype[np.intp]]) -> int:
    """How many bytes were stored: a stored byte may equal the pattern's, so holes of a few bytes are filled."""
    if changed.size == 0:
        return 0
    steps = np.diff(changed)
    return int(1 + steps[steps <= 4].sum() + (steps > 4).sum())


def span_bytes(tensor: torch.Tensor) -> int:
    """The bytes from a tensor's first element to behind its last, gaps included."""
    if tensor.numel() == 0:
        return 0
    last = math.fsum((s - 1) * d for s, d in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(last) + 1) * tensor.element_size()


def _memory(nbytes: int) -> Memory:
    """New memory, aligned as torch aligns it. Large ones are the system's own pages, and go back to it.

    In the heap they would leave holes in which something small and lasting settles, and it would grow with every call.
    """
    if nbytes < _PAGES:
        return torch.empty(nbytes, dtype=torch.uint8).numpy()
    return np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)


def copied(flat: torch.Tensor) -> torch.Tensor:
    """A copy of a flat tensor, in such memory."""
    return torch.from_numpy(_memory(flat.numel() * flat.element_size())).view(flat.dtype).copy_(flat)


def guarded(value: torch.Tensor) -> tuple[torch.Tensor, Guard]:
    """Return a twin of `value`, just allocated and never written, with guard zones around it.

    The twin looks the same: size, strides, offset 0, a storage of just its size, the same alignment. Its memory lies
    inside a larger one, so the storage cannot be resized.
    """
    nbytes = span_bytes(value)
    margin = _SMALL if nbytes < _BIG else _LARGE
    memory = _memory(nbytes + 2 * margin)
    memory[:margin] = _PATTERN[:margin]
    memory[margin + nbytes :] = _PATTERN[:margin]
    inside = torch.from_numpy(memory[margin : margin + nbytes]).untyped_storage()
    # Not a view of anything: autograd would treat a view that was made without it differently.
    twin = torch.empty(0, dtype=value.dtype).set_(inside, 0, value.size(), value.stride())
    return twin, Guard(memory)


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


def unmistakable(dtype: torch.dtype) -> bool:
    """Whether no program computes the pattern by itself: floating point of two bytes and more, and bool."""
    return dtype is torch.bool or (_component(dtype).is_floating_point and _component(dtype).itemsize > 1)


def storage_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, gaps included, as integers of the width of its elements."""
    storage = tensor.untyped_storage()
    integer = _integer(tensor.dtype)
    return torch.empty(0, dtype=integer).set_(storage, 0, (storage.nbytes() // integer.itemsize,), (1,))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor as integers; complex numbers as two."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_integer(tensor.dtype))


def poison(tensor: torch.Tensor) -> None:
    """Fill the storage of a fresh tensor with the pattern."""
    whole = storage_bits(tensor)
    whole.fill_(torch.iinfo(whole.dtype).max)


def ordinary(dtype: torch.dtype) -> int:
    """The bits of the other pattern, an ordinary number, that tells what depends on poison from what does not.

    Ordinary, because two NaNs come out of most arithmetic as the same one; negative, because many functions leave
    positive numbers as they are (−1.5); False for bool, because the pattern reads as True; and 1 for integers, which is
    harmless as an index and as a divisor.
    """
    return _ORDINARY.get(_component(dtype), 1)


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
    gap = torch.ones_like(storage_bits(tensor), dtype=torch.bool)
    elements = bits(tensor)
    torch.as_strided(gap, elements.size(), elements.stride(), 0).fill_(False)
    return gap.nonzero().squeeze(1)


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, the gaps between its elements included, in its dtype."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))


Bits = Mapping[Block, torch.Tensor]
"""The whole of some storages, as integers."""


class Repeat:
    """One launch that can be run again: `written` are all the storages it writes, `before` what some held before it."""

    def __init__(self, again: Callable[[], Any], written: Bits, before: Bits) -> None:
        self._again = again
        self._written = written
        self._before = before

    def run(
        self, unwritten: Bits, wholes: Bits, number: Callable[[torch.dtype], int] = ordinary
    ) -> dict[Block, torch.Tensor]:
        """Return what the launch leaves when these positions of `wholes` hold an ordinary number instead of poison."""
        saved = {block: copied(whole) for block, whole in self._written.items()}
        originals = {block: wholes[block][where].clone() for block, where in unwritten.items()}
        try:
            for block, whole in self._written.items():
                if block in self._before:
                    whole.copy_(self._before[block])
            for block, where in unwritten.items():
                wholes[block][where] = number(block.dtype)
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
        found = self._read(unwritten, wholes, ordinary)
        # As a bool the pattern is neither, and compiled code may take it for False as well.
        flags = {b: where for b, where in unwritten.items() if b.dtype is torch.bool and b not in found}
        return found | (self._read(flags, wholes, lambda _dtype: 1) if flags else set())

    def _read(self, unwritten: Bits, wholes: Bits, number: Callable[[torch.dtype], int]) -> set[Block]:
        poisoned = {block: copied(whole) for block, whole in self._written.items()}
        numbers = self.run(unwritten, wholes, number)
        if not self._differ(poisoned, numbers, unwritten, number):
            return set()
        if any(not torch.equal(left, poisoned[b]) for b, left in self.run({}, wholes).items()):
            return set()
        if len(unwritten) == 1:
            return set(unwritten)
        found = set()
        for block, where in unwritten.items():
            others = {b: w for b, w in unwritten.items() if b is not block}
            if self._differ(poisoned, self.run({block: where}, wholes, number), {block: where}, number) or self._differ(
                self.run(others, wholes, number), numbers, {block: where}, number
            ):
                found.add(block)
        return found or set(unwritten)

    @staticmethod
    def _differ(poisoned: Bits, second: Bits, unwritten: Bits, number: Callable[[torch.dtype], int]) -> bool:
        """Whether two runs leave different things; between them these positions went from poison to ordinary."""
        for block, first in poisoned.items():
            different = first != second[block]
            if (where := unwritten.get(block)) is not None:
                # What the launch left alone differs because it was given differently, and shows nothing.
                untouched = first[where] == torch.iinfo(first.dtype).max
                alone = untouched & (second[block][where] == number(block.dtype))
                different[where[alone]] = False
            if bool(different.any()):
                return True
        return False
