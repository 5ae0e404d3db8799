"""Random numbers drawn again: those of Inductor's CPU kernels, and those that two graphs of a program share.

Inductor's kernels use Philox4x32-10, with one counter an element. C++ and Triton differ in the key, in how a word
becomes a number, and in the arithmetic of normal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchsan.reference.arithmetic import Operators, Unavailable
from torchsan.torch_internals.operators import draws_random_numbers

_Words = npt.NDArray[np.uint32]

_KEY_A, _KEY_B = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_MUL_A, _MUL_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_ROUNDS = 10

_CONSTANT = 0.5
"""In the middle, so that it does not matter whether a graph keeps what is above 1 − p or what is below p."""
_UNIFORM = frozenset(["rand", "rand_like", "uniform", "uniform_"])
_NORMAL = frozenset(["randn", "randn_like", "normal", "normal_", "normal_functional"])


def draw_as_kernels(
    operators: Operators,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    compute: Callable[[], Any],
    *,
    triton: bool = False,
) -> Any:
    """Return the numbers that the compiled kernel, of C++ or Triton, drew for one of Inductor's random operators.

    Raise Unavailable for an operator that draws from a generator: where that stood at the launch is not known.
    """
    name = func._opname
    if not name.startswith(("inductor_lookup_seed", "inductor_rand", "inductor_seed")):
        if draws_random_numbers(func, args, kwargs):
            raise Unavailable(f"{func} draws random numbers of its own")
        return compute()
    if name == "inductor_lookup_seed":
        return args[0][args[1]].clone()
    seed = args[-1] if name == "inductor_randint" else args[1] if len(args) > 1 else None
    if not isinstance(seed, torch.Tensor) or seed.device.type != "cpu" or name.startswith("inductor_seed"):
        raise Unavailable(f"the random numbers of prims.{name} cannot be drawn again")
    if name == "inductor_randint":
        return randint(args[0], args[1], args[2], seed, triton=triton)
    # A uniform number is exact; a normal one is computed from it, in single precision.
    if args[2] == "rand":
        return operators.given(rand(args[0], seed, triton=triton))
    return operators.rounded(randn(args[0], seed, triton=triton))


class SharedNumbers:
    """Random operators draw one seed each from the program's generator, and their numbers from that.

    So the n-th random operator gets the same numbers in every graph of a compile, whichever of its forms it has there:
    `dropout`'s `bernoulli_`, the `rand` of its decomposition, or Inductor's own with its seeds.
    """

    def __init__(self, *, constant: bool) -> None:
        """`constant` makes all numbers equal, for graphs that draw the same numbers in another order or layout."""
        self._constant = constant
        self.draws = 0
        """How many seeds were drawn."""

    def __call__(
        self,
        operators: Operators,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        compute: Callable[[], Any],
    ) -> Any:
        """Return what a random operator gives. Raise Unavailable for one whose distribution is not known here."""
        match func._opname:
            case "inductor_lookup_seed":
                return args[0][args[1]].clone()
            case "inductor_seed":
                return torch.tensor(self._seed())
            case "inductor_seeds":
                return torch.tensor([self._seed() for _ in range(args[0])])
            case "inductor_random":
                return operators.given(self._numbers(args[0], int(args[1]), args[2]))
            case "inductor_randint":
                return self._integers(args[2], int(args[3]), args[0], args[1])
            case "bernoulli" | "bernoulli_" as name:
                drawn = operators.given(self._numbers(args[0].shape, self._seed(), "rand", like=args[0]))
                return _bernoulli(name, args, drawn)
            case "native_dropout" if args[2] is not False:
                drawn = operators.given(self._numbers(args[0].shape, self._seed(), "rand", like=args[0]))
                mask = drawn > args[1]
                return mask * args[0] * (1.0 / (1.0 - args[1])), mask
        state = torch.get_rng_state()
        result = compute()
        if torch.equal(torch.get_rng_state(), state):
            return result  # It may be random, but is not: attention without dropout, say.
        torch.set_rng_state(state)
        return self._like(operators, func, args, result)

    def _like(self, operators: Operators, func: Any, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        """Numbers in the place of those that an operator drew from the program's generator."""
        name = func._opname
        if name.startswith("randint"):
            low, high = (0, args[0]) if func._overloadname in ("default", "") else (args[0], args[1])
            if name == "randint_like" or not isinstance(high, int):
                raise Unavailable(f"{func} cannot be drawn again")
            return self._integers(result.shape, self._seed(), low, high).to(result.dtype)
        kind = "rand" if name in _UNIFORM else "randn" if name in _NORMAL else None
        extra = [a for a in args[1:] if isinstance(a, int | float)] if name.endswith("_") else []
        if kind is None or extra not in ([], [0, 1], [0.0, 1.0]):
            raise Unavailable(f"{func} cannot be drawn again")
        drawn = operators.given(self._numbers(result.shape, self._seed(), kind, like=result).to(result.dtype))
        return result.copy_(drawn) if name.endswith("_") else drawn

    def _seed(self) -> int:
        self.draws += 1
        return int(torch.randint(1 << 62, ()).item())

    def _numbers(self, size: Sequence[int], seed: int, kind: str, like: torch.Tensor | None = None) -> torch.Tensor:
        """Numbers in the order of memory, which is how a decomposition draws them for a transposed tensor."""
        if self._constant:
            return torch.full(tuple(size), _CONSTANT)
        draw: Callable[..., torch.Tensor] = torch.rand if kind == "rand" else torch.randn
        drawn = draw(math.prod(size), generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
        if like is None:
            return drawn.reshape(tuple(size))
        return drawn.as_strided(tuple(size), torch.empty_like(like).stride())

    def _integers(self, size: Sequence[int], seed: int, low: int, high: int) -> torch.Tensor:
        if self._constant:
            return torch.full(tuple(size), (low + high) // 2)
        return torch.randint(low, high, tuple(size), generator=torch.Generator().manual_seed(seed))


def _bernoulli(name: str, args: tuple[Any, ...], drawn: torch.Tensor) -> Any:
    chance: Any = args[1] if len(args) > 1 and not isinstance(args[1], torch.Generator) else None
    if name == "bernoulli":
        return (drawn < (args[0] if chance is None else chance)).to(args[0].dtype)
    # As `dropout`, which uses it, is decomposed: kept where the number is above the chance of being dropped.
    return args[0].copy_(drawn > 1 - (0.5 if chance is None else chance))


def rand(size: Sequence[int], seed: torch.Tensor, *, triton: bool = False) -> torch.Tensor:
    """Uniform in [0, 1), as `prims.inductor_random(size, seed, 'rand')` compiles to."""
    words = _words(size, seed, triton=triton)
    return torch.from_numpy(_uniform(words[0], triton=triton)).reshape(tuple(size))


def randn(size: Sequence[int], seed: torch.Tensor, *, triton: bool = False) -> torch.Tensor:
    """Standard normal, as `prims.inductor_random(size, seed, 'randn')` compiles to: Box and Muller's transform."""
    words = _words(size, seed, triton=triton)
    first, second = (_uniform(w, triton=triton) for w in words[:2])
    if triton:
        # All in single precision: near a zero of the cosine, the rounding of the angle is what one sees.
        length = np.sqrt(np.float32(-2) * np.log(np.maximum(np.float32(1e-7), first)))
        normal = length * np.cos(np.float32(2.0 * math.pi) * second)
        return torch.from_numpy(normal).reshape(tuple(size))
    u1 = (np.float32(1) - first).astype(np.float64)
    u2 = (np.float32(1) - second).astype(np.float64)
    # C++ takes log of a float as a float, and the rest as doubles.
    log = np.log(u1.astype(np.float32)).astype(np.float64)
    normal = np.sqrt(-2.0 * log) * np.cos(2.0 * math.pi * u2)
    return torch.from_numpy(normal.astype(np.float32)).reshape(tuple(size))


def randint(low: int, high: int, size: Sequence[int], seed: torch.Tensor, *, triton: bool = False) -> torch.Tensor:
    """Integers in [low, high), as `prims.inductor_randint` compiles to."""
    words = _words(size, seed, triton=triton)
    drawn = words[0].astype(np.uint64) | (words[1].astype(np.uint64) << np.uint64(32))
    return torch.from_numpy((drawn % np.uint64(high - low)).astype(np.int64) + low).reshape(tuple(size))


def _uniform(words: _Words, *, triton: bool) -> npt.NDArray[np.float32]:
    """C++ drops the sign of a word; Triton folds the negative half onto the other: −1 is 0."""
    positive = words ^ (np.uint32(0) - (words >> np.uint32(31))) if triton else words & np.uint32(0x7FFFFFFF)
    return positive.astype(np.float32) * np.float32(4.6566127342e-10)


def _words(size: Sequence[int], seed: torch.Tensor, *, triton: bool) -> tuple[_Words, _Words, _Words, _Words]:
    """The four words of each element: the counter is its row-major position.

    The key is the seed's low 32 bits; Triton's has the high ones too.
    """
    key_a = np.uint32(int(seed.item()) & 0xFFFFFFFF)
    key_b = np.uint32((int(seed.item()) >> 32) & 0xFFFFFFFF if triton else 0)
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
