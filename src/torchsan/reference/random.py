"""The random numbers that Inductor's CPU kernels draw, drawn again: Philox4x32-10, one counter an element."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_Words = npt.NDArray[np.uint32]

_KEY_A, _KEY_B = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_MUL_A, _MUL_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_ROUNDS = 10


def rand(size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    """Uniform in [0, 1), as `prims.inductor_random(size, seed, 'rand')` compiles to."""
    words = _words(size, seed)
    return torch.from_numpy(_uniform(words[0])).reshape(tuple(size))


def randn(size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    """Standard normal, as `prims.inductor_random(size, seed, 'randn')` compiles to: Box and Muller's transform."""
    words = _words(size, seed)
    u1 = (np.float32(1) - _uniform(words[0])).astype(np.float64)
    u2 = (np.float32(1) - _uniform(words[1])).astype(np.float64)
    # C++ takes log of a float as a float, and the rest as doubles.
    log = np.log(u1.astype(np.float32)).astype(np.float64)
    normal = np.sqrt(-2.0 * log) * np.cos(2.0 * math.pi * u2)
    return torch.from_numpy(normal.astype(np.float32)).reshape(tuple(size))


def randint(low: int, high: int, size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    """Integers in [low, high), as `prims.inductor_randint` compiles to."""
    words = _words(size, seed)
    drawn = words[0].astype(np.uint64) | (words[1].astype(np.uint64) << np.uint64(32))
    return torch.from_numpy((drawn % np.uint64(high - low)).astype(np.int64) + low).reshape(tuple(size))


def _uniform(words: _Words) -> npt.NDArray[np.float32]:
    return (words & np.uint32(0x7FFFFFFF)).astype(np.float32) * np.float32(4.6566127342e-10)


def _words(size: Sequence[int], seed: torch.Tensor) -> tuple[_Words, _Words, _Words, _Words]:
    """The four words of each element: the counter is its row-major position, the key the seed's low 32 bits."""
    key_a = np.uint32(int(seed.item()) & 0xFFFFFFFF)
    key_b = np.uint32(0)
    c0 = np.arange(math.prod(size), dtype=np.uint64).astype(np.uint32)
    c1, c2, c3 = (np.zeros_like(c0) for _ in range(3))
    with np.errstate(over="ignore"):
        for _ in range(_ROUNDS):
            product_a, product_b = c0.astype(np.uint64) * _MUL_A, c2.astype(np.uint64) * _MUL_B
            high_a, low_a = (product_a >> np.uint64(32)).astype(np.uint32), product_a.astype(np.uint32)
            high_b, low_b = (product_b >> np.uint64(32)).astype(np.uint32), product_b.astype(np.uint32)
            c0, c1, c2, c3 = high_b ^ c1 ^ key_a, low_b, high_a ^ c3 ^ key_b, low_a
            key_a, key_b = np.uint32(key_a + _KEY_A), np.uint32(key_b + _KEY_B)
    return c0, c1, c2, c3
