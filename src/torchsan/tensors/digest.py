"""A fast fingerprint of a tensor."""

from __future__ import annotations

import torch
import xxhash

from torchsan.errors import UsageError
from torchsan.tensors.elements import elements, unreadable
from torchsan.tensors.undisturbed import undisturbed


@undisturbed
def digest(t: torch.Tensor) -> str:
    """Return a hash of dtype, shape and elements of `t`, as 32 hex digits; strides, offset and device do not matter.

    Elements count as bits: NaNs with other payloads differ, and so do 0.0 and -0.0. The hash (XXH3) is for detecting
    change. It is not an address: it does not withstand someone who looks for collisions, so the store uses BLAKE3.

    Raise UsageError where the elements cannot be read.

    >>> import torch, torchsan
    >>> torchsan.digest(torch.zeros(2, 3)) == torchsan.digest(torch.zeros(3, 2).t())
    True
    """
    reason = unreadable(t)
    if reason is not None:
        raise UsageError(f"no digest of this {t.dtype} tensor: {reason}; digest its parts", slug="tensor-unreadable")
    state = xxhash.xxh3_128(f"{t.dtype} {tuple(t.shape)}\0".encode())
    for (piece,) in elements(t):
        state.update(piece.data)
    return state.hexdigest()
