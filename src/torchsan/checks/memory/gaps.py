"""The room that strides leave between the elements of a buffer: nobody writes it, so nobody may read it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchsan.checks.memory.ledger import Block
from torchsan.checks.memory.poison import bits, block_bits
from torchsan.instruments.program import Launch
from torchsan.records import Kind, Severity

__all__ = ["check_gaps", "gap_positions", "with_gaps"]


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
