"""Memory for a kernel's inputs and allocations with guards on both sides, filled with a pattern that tells.

What a kernel reads outside of its tensors, or before anything was written there, is that pattern: with another one its
results are others. What it writes outside changes the guards. With fences, the guards cannot even be read.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchsan.torch_internals.dispatch import OperatorMode, call_kernel, pop_mode, push_mode
from torchsan.torch_internals.operators import is_own

PATTERNS = {"nan": 0xFF, "number": 0x47}
"""Bytes of which every float is NaN, and of which every float is a number and every integer large."""
_PAGE = mmap.PAGESIZE
_GUARD = 16 * _PAGE
_ALIGNMENT = 64

_EMPTY = frozenset("empty empty_strided empty_like new_empty new_empty_strided empty_permuted".split())
_FRESH = _EMPTY | frozenset(
    "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full clone _to_copy".split()
)


@dataclass(slots=True, eq=False)
class Block:
    """One piece of memory with its guards. `start` and `size` are those of the tensor in it, in bytes."""

    name: str
    memory: mmap.mmap
    start: int
    size: int
    itemsize: int
    pattern: int
    guard: int
    initialised: bool = False
    reported: bool = False

    @property
    def address(self) -> int:
        """Where the tensor begins."""
        return _address(self.memory) + self.start

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes."""
        return np.frombuffer(self.memory, np.uint8)[self.start : self.start + self.size]

    def damage(self) -> tuple[int, int] | None:
        """The first and the last byte outside that changed, counted from the tensor's begin; None if none did."""
        whole = np.frombuffer(self.memory, np.uint8)
        before, after = whole[: self.start], whole[self.start + self.size :]
        places = [np.flatnonzero(before != self.guard) - self.start, np.flatnonzero(after != self.guard) + self.size]
        changed = np.concatenate(places)
        return (int(changed[0]), int(changed[-1])) if len(changed) else None

    def protect(self, allowed: bool) -> None:
        """Let the pages of the guards be used, or not. The part of a page that holds the tensor's end always can."""
        libc = ctypes.CDLL(None, use_errno=True)
        base = _address(self.memory)
        first = (self.start // _PAGE) * _PAGE
        last = -(-(self.start + self.size) // _PAGE) * _PAGE
        rights = mmap.PROT_READ | mmap.PROT_WRITE if allowed else 0
        for begin, end in ((0, first), (last, len(self.memory))):
            if end > begin:
                libc.mprotect(ctypes.c_void_p(base + begin), ctypes.c_size_t(end - begin), rights)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Arena:
    """The memory of one call: what fills empty tensors and guards, by name. With `fence`, guards cannot be touched."""

    def __init__(self, empty: str, guards: str, *, fence: bool = False) -> None:
        self.blocks: list[Block] = []
        self.operators: Counter[str] = Counter()
        self._empty, self._guards = PATTERNS[empty], PATTERNS[guards]
        self._fence = fence
        self._allocations = 0

    def place(
        self, name: str, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, *, lead: int = 0
    ) -> tuple[torch.Tensor, Block | None]:
        """Return a tensor in memory of its own, filled as empty ones are, whose first element is `lead` into it."""
        if 0 in size:
            return torch.empty_strided(size, stride, dtype=dtype), None
        span = lead + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        itemsize = dtype.itemsize
        nbytes = span * itemsize
        pages = -(-nbytes // _PAGE) * _PAGE
        memory = mmap.mmap(-1, pages + 2 * _GUARD)
        # The end lies at the end of a page, as far as the alignment that PyTorch promises lets it.
        start = _GUARD + (pages - nbytes) // _ALIGNMENT * _ALIGNMENT
        block = Block(name, memory, start, nbytes, itemsize, self._empty, self._guards)
        np.frombuffer(memory, np.uint8)[:] = self._guards
        block.bytes()[:] = self._empty
        self.blocks.append(block)
        flat = torch.frombuffer(memory, dtype=dtype, count=span, offset=start)
        if self._fence:
            block.protect(allowed=False)
        return flat.as_strided(size, stride, lead), block

    def open(self) -> None:
        """Take the fences down."""
        if self._fence:
            for block in self.blocks:
                block.protect(allowed=True)
            self._fence = False

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Give what PyTorch allocates in the block guards, too, and count the operators that it runs."""
        mode = OperatorMode(self._run)
        push_mode(mode)
        try:
            yield
        finally:
            pop_mode(mode)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.operators[str(func)] += 1
        if not is_own(func):
            # A mode does not see what an operator does; what a library's does is what is asked.
            with self.allocating():
                return call_kernel(func, args, kwargs)
        result = func(*args, **kwargs)
        name = func._opname
        if name in _FRESH and func.namespace == "aten" and type(result) is torch.Tensor:
            return self._rehomed(result, empty=name in _EMPTY)
        return result

    def _rehomed(self, result: torch.Tensor, *, empty: bool) -> torch.Tensor:
        plain = result.device.type == "cpu" and result.layout is torch.strided and not result.is_quantized
        if not plain or result.numel() == 0 or result.storage_offset() or result.is_conj() or result.is_neg():
            return result
        if not empty and math.prod(result.shape) * result.element_size() > 1 << 24:
            return result
        self._allocations += 1
        shape = f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)}"
        new, block = self.place(
            f"allocation {self._allocations} ({shape})", tuple(result.shape), result.stride(), result.dtype
        )
        if not empty and block is not None:
            new.copy_(result)
            block.initialised = True
        return new

    def damages(self) -> Iterator[tuple[Block, int, int]]:
        """Yield the blocks outside of which something was written, with the first and last byte."""
        for block in self.blocks:
            damage = None if block.reported else block.damage()
            if damage is not None:
                block.reported = True
                yield block, *damage
