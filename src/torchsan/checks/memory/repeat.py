"""Run one launch again, with other values in elements that nobody has written, and leave everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsan.checks.memory.guards import copied
from torchsan.checks.memory.ledger import Block
from torchsan.checks.memory.poison import leave_other

__all__ = ["Repeat"]

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

    def depends_on(self, unwritten: Bits, wholes: Bits) -> bool:
        """Whether what the launch leaves depends on what stands at these positions.

        A launch that does not repeat itself to the bit (atomic additions) is given the benefit of the doubt.
        """
        first = {block: copied(whole) for block, whole in self._written.items()}
        other = self.run(unwritten, wholes)
        if not any(self._differ(b, first[b], other[b], unwritten.get(b)) for b in first):
            return False
        control = self.run({}, wholes)
        return all(torch.equal(control[b], first[b]) for b in first)

    @staticmethod
    def _differ(block: Block, first: torch.Tensor, other: torch.Tensor, where: torch.Tensor | None) -> bool:
        if where is None:
            return not torch.equal(first, other)
        # What the launch left alone differs because it was given differently, and shows nothing.
        given = leave_other(torch.empty(1, dtype=first.dtype), torch.tensor([0]), block.dtype)
        alone = (first[where] == torch.iinfo(first.dtype).max) & (other[where] == given)
        different = first != other
        different[where[alone]] = False
        return bool(different.any())
