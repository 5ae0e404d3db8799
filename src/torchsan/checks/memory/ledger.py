"""The ledger of one call: which variable lies in which storage, and whether storages live and die as planned.

Keyed by storage, because a storage that is reused outlives its first name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from torchsan.checks.memory.guards import Guard
from torchsan.instruments.program import Launch
from torchsan.torch_internals.storages import StorageRef, storage_key

__all__ = ["Block", "Ledger", "Origin", "tensors_in"]


class Origin(Enum):
    """Where a storage comes from."""

    PROGRAM = "allocated by the program"
    RESULT = "the result of an operator"
    GIVEN = "an input"


@dataclass(slots=True, eq=False)
class Block:
    """One storage. `names` are the variables that lie in it now; `name` is the first it had."""

    ref: StorageRef
    name: str
    function: str
    nbytes: int
    pointer: int
    dtype: torch.dtype
    origin: Origin
    names: set[tuple[str, str]] = field(default_factory=set)
    guard: Guard | None = None
    gaps: torch.Tensor | None = None
    """Positions between its elements, where its strides leave room."""
    layout: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """The size and strides that it was allocated with."""
    settled: bool = True
    """Whether every element is known to have been written, or need not be."""
    certain: torch.Tensor | None = None
    """Positions that hold the pattern because a kernel wrote it there."""
    last_use: Launch | None = None
    left_by: Launch | None = None
    """The launch that wrote it and left elements unwritten."""
    verified: bool = False
    """Whether that launch was run twice to be sure."""
    excused: bool = False
    """Whether something outside of the program may keep it: its caller, or an operator that was given it to keep."""
    writes: list[tuple[int, Launch, str]] = field(default_factory=list)
    bytes_planned: bool = True
    bytes_live: bool = True


class Ledger:
    """The storages of one call and the variables that lie in them. Several functions share it: subgraphs too."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self._names: dict[tuple[str, str], tuple[Block, ...]] = {}
        self.freed: dict[tuple[str, str], Launch | None] = {}

    def bind(self, function: str, name: str, value: Any, origin: Origin) -> tuple[Block, ...]:
        """`name` now holds `value`, a tensor or a list of them. Return the storages, new ones with that origin."""
        key = (function, name)
        blocks = tuple(dict.fromkeys(self._block(function, name, t, origin) for t in tensors_in(value)))
        self._unbind(key)
        self._names[key] = blocks
        for block in blocks:
            block.names.add(key)
        self.freed.pop(key, None)
        return blocks

    def find(self, function: str, name: str) -> tuple[Block, ...]:
        """The storages that `name` lies in."""
        return self._names.get((function, name), ())

    def free(self, function: str, names: Iterable[str]) -> Iterator[Block]:
        """The names are gone. Yield the storages that no variable lies in any more."""
        for name in names:
            blocks = self._unbind((function, name))
            self.freed[function, name] = blocks[0].last_use if blocks else None
            yield from (b for b in blocks if not b.names)

    def bound(self, function: str) -> dict[str, tuple[Block, ...]]:
        """The variables of a function that lie in storages now."""
        return {name: blocks for (f, name), blocks in self._names.items() if f == function}

    def holding(self, value: Any) -> Iterator[Block]:
        """The known storages that a value lies in."""
        for tensor in tensors_in(value):
            block = self.blocks.get(storage_key(tensor))
            if block is not None:
                yield block

    def drop(self, block: Block) -> None:
        """Forget a storage that died."""
        self.blocks.pop(block.ref.key, None)

    def _unbind(self, key: tuple[str, str]) -> tuple[Block, ...]:
        blocks = self._names.pop(key, ())
        for block in blocks:
            block.names.discard(key)
        return blocks

    def _block(self, function: str, name: str, tensor: torch.Tensor, origin: Origin) -> Block:
        key = storage_key(tensor)
        block = self.blocks.get(key)
        if block is None:
            storage = tensor.untyped_storage()
            block = self.blocks[key] = Block(
                ref=StorageRef(tensor),
                name=name,
                function=function,
                nbytes=storage.nbytes(),
                pointer=storage.data_ptr(),
                dtype=tensor.dtype,
                origin=origin,
            )
        return block


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with a storage in a value: itself, or in its lists."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
