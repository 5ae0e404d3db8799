"""Whether memory changed, bit for bit."""

from __future__ import annotations

import ctypes

import torch
import xxhash

__all__ = ["bits"]

_EMPTY = b""


def bits(t: torch.Tensor) -> bytes:
    """A digest of the elements of `t` as they lie in memory: another bit, another digest (NaN payloads, −0 too).

    128 bits of XXH3, at memory speed; two states of one tensor get the same digest by accident once in 2¹²⁸.
    """
    t = t.detach()
    if t.numel() == 0:
        return _EMPTY
    if t.is_conj():
        t = t.conj()
    if t.is_neg():
        t = torch._neg_view(t)
    if not t.is_contiguous() or t.device.type != "cpu":
        # A copy of the elements as raw words, so that none is rounded or normalised on the way.
        t = t.view(_WORDS.get(t.element_size(), t.dtype)).contiguous().cpu()
    length = t.numel() * t.element_size()
    return xxhash.xxh3_128_digest((ctypes.c_char * length).from_address(t.data_ptr()))


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
