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
