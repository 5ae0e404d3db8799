"""What rounding can do to one operator: the random last bits of a nudged replay.

A nudged replay runs the program's own arithmetic with every result that was rounded moved by a few units in the last
place, at random, as Verrou and Verificarlo do. What differs between such replays is noise; a compiled result outside
of it is not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

AMPLITUDE = 4.0
"""How far a result is moved at most, in units of the last place."""

_POOL = 1 << 20

# Operators whose result is one of their inputs, or a number that every format holds: nothing is rounded in them.
_EXACT = frozenset(
    """abs alias amax amin aminmax arange argmax argmin as_strided bitwise_and bitwise_not bitwise_or bitwise_xor
    broadcast_in_dim cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy copy_ detach diagonal empty
    empty_like empty_strided eq expand expand_as fill flip floor full full_like gather ge gt index index_select
    inductor_lookup_seed inductor_random inductor_randint inductor_seeds iota isinf isnan le lift_fresh_copy
    logical_and logical_not logical_or logical_xor lt masked_fill max max_pool2d_with_indices maximum min minimum narrow
    ne neg new_empty new_empty_strided new_full new_zeros ones ones_like permute reciprocal_exact relu repeat reshape
    roll round scalar_tensor select select_scatter sign slice slice_scatter sort split split_with_sizes squeeze stack
    t transpose tril triu trunc unbind unfold unsqueeze view view_of view_as_complex view_as_real view_as where zeros
    zeros_like zero _unsafe_index _unsafe_view _conj _neg_view real imag resolve_conj resolve_neg
    convert_element_type_exact""".split()
)

_REDUCTIONS = frozenset("sum mean mm bmm addmm baddbmm dot mv cumsum".split())
_MATMULS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1)}

# Operators made of elementwise arithmetic: one rounding an element, whatever the inputs.
_POINTWISE_TAG = torch.Tag.pointwise


class Nudger:
    """Nudges results with random numbers of its own, so that the program's generator is left alone."""

    def __init__(self, seed: int) -> None:
        self._noise = _pool(seed)
        self._offset = 0

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers in [−1, 1) in the shape of `like`, from a pool: fresh ones would cost more than the replay."""
        n = like.numel()
        self._offset = (self._offset * 31 + 17) % _POOL
        repeats = -(-(n + self._offset) // _POOL)
        pool = self._noise if repeats <= 1 else self._noise.repeat(repeats)
        return pool[self._offset : self._offset + n].reshape(like.shape).to(like.device)

    def result(
        self, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]
    ) -> Any:
        """Run an operator and return its result with the noise that rounding may have left in it."""
        if target._schema.is_mutable:
            return self._overwritten(args, call(*args, **kwargs))
        if name in _EXACT:
            return self._undefined(name, call(*args, **kwargs))
        if name in ("convert_element_type", "_to_copy", "to"):
            return self._converted(args, call(*args, **kwargs))
        if name in _REDUCTIONS:
            return self._reduced(name, args, call(*args, **kwargs))
        tags = getattr(target, "tags", ())
        if _POINTWISE_TAG in tags or getattr(target, "namespace", "") == "prims":
            return _tree(self.last_bit, call(*args, **kwargs))
        # Anything else (convolution, linear algebra, scatter, Fourier transforms): results as good as those of inputs
        # that were rounded, which is what a backward-stable algorithm gives, and more of it the more it adds up.
        inputs = sum(t.numel() for t in _tensors((args, kwargs)))
        result = call(*_tree(self.last_bit, args), **_tree(self.last_bit, kwargs))
        outputs = sum(t.numel() for t in _tensors(result))
        factor = max(1.0, math.sqrt(inputs / max(1, outputs)) / 4)
        return _tree(lambda t: self.last_bit(t, factor), result)

    def last_bit(self, t: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """Move each element by up to AMPLITUDE × factor units in the last place. Zeros and non-finite numbers stay."""
        if not (t.is_floating_point() or t.is_complex()) or t.numel() == 0:
            return t
        eps = torch.finfo(t.dtype).eps * AMPLITUDE * factor
        dtype = torch.float64 if t.dtype in (torch.float64, torch.complex128) else torch.float32
        # Factors: to add a part of infinity to infinity would make NaN of it. The first operand gives the strides.
        factors = torch.add(torch.ones((), dtype=dtype, device=t.device), self.noise(t).to(dtype), alpha=eps)
        if t.is_complex():
            moved = torch.view_as_real(t.resolve_conj()).to(dtype) * factors.unsqueeze(-1)
            return torch.view_as_complex(moved).to(t.dtype)
        return (t.to(dtype) * factors).to(t.dtype)

    def _overwritten(self, args: tuple[Any, ...], result: Any) -> Any:
        """The result is memory that others see as well, so the noise goes into it, not into a copy."""
        inputs = sum(t.numel() for t in _tensors(args))
        for t in _tensors(result):
            factor = max(1.0, math.sqrt(inputs / max(1, t.numel())) / 4)
            t.copy_(self.last_bit(t, factor))
        return result

    def _undefined(self, name: str, result: Any) -> Any:
        """What memory holds that nobody has written is anything."""
        if name.startswith(("empty", "new_empty")):
            return _tree(lambda t: self.noise(t).mul(1e4).to(t.dtype) if t.numel() else t, result)
        return result

    def _converted(self, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        source = args[0]
        if not isinstance(source, torch.Tensor) or not source.is_floating_point():
            return result
        if result.is_floating_point():
            narrower = torch.finfo(result.dtype).eps > torch.finfo(source.dtype).eps
            return self.last_bit(result, 1 / AMPLITUDE) if narrower else result
        if result.dtype is torch.bool or result.is_complex():
            return result
        # C++ leaves open what a float outside the integer's range becomes; scalar and vector code differ in it.
        info = torch.iinfo(result.dtype)
        wide = source.to(torch.float64)
        outside = ~((wide > float(info.min) - 1) & (wide < float(info.max) + 1))
        if not bool(outside.any()):
            return result
        anything = self.noise(result).mul(100).to(result.dtype)
        return torch.where(outside, anything, result)

    def _reduced(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        """A sum of n terms: each of its partial sums may be rounded, in whatever order they are formed."""
        if not (result.is_floating_point() or result.is_complex()) or result.numel() == 0:
            return result
        n, size = _partial_sums(name, args, result)
        # Half precision is summed in single precision and rounded once.
        accumulated = torch.finfo(torch.promote_types(result.dtype, torch.float32)).eps
        spread = (size * (accumulated * math.sqrt(n))).to(result.abs().dtype).nan_to_num_(0, 0, 0)
        return self.last_bit(result) + (spread * self.noise(result)).to(result.dtype)


@functools.lru_cache(maxsize=16)
def _pool(seed: int) -> torch.Tensor:
    """Numbers in [−1, 1), which nobody may change; there are few seeds."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(_POOL, generator=generator, dtype=torch.float32).mul_(2).sub_(1)


def _partial_sums(name: str, args: tuple[Any, ...], result: torch.Tensor) -> tuple[int, torch.Tensor]:
    """How many terms a sum has, and how large its partial sums get.

    Terms of one sign add up to the result; terms of random sign wander as far as their root sum of squares; an eighth
    of the sum of magnitudes allows for terms that come in runs.
    """
    wide = torch.promote_types(result.abs().dtype, torch.float32)
    if name in _MATMULS:
        a, b = (args[i].abs().to(wide) for i in _MATMULS[name])
        n = a.shape[-1]
        magnitudes, squares = torch.matmul(a, b), torch.matmul(a * a, b * b)
        if name in ("addmm", "baddbmm"):
            magnitudes = magnitudes + args[0].abs().to(wide)
    else:
        x = args[0].abs().to(wide)
        n = max(1, x.numel() // result.numel()) if name != "cumsum" else max(1, x.shape[args[1]] if x.dim() else 1)
        if name == "cumsum":
            magnitudes, squares = x.cumsum(args[1]), (x * x).cumsum(args[1])
        else:
            dims = args[1] if len(args) > 1 and args[1] not in (None, []) else list(range(x.dim()))
            keep = result.dim() == x.dim()
            magnitudes, squares = x.sum(dims, keepdim=keep), (x * x).sum(dims, keepdim=keep)
            if name == "mean":
                magnitudes, squares = magnitudes / n, squares / (n * n)
    return max(1, n), result.abs().to(wide) + squares.sqrt() + magnitudes / 8


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _tree(lambda t: found.append(t) or t, value)  # type: ignore[func-returns-value]  # append returns None
    return found


def _tree(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(_tree(function, v) for v in value)
    if isinstance(value, dict):
        return {k: _tree(function, v) for k, v in value.items()}
    return value


def value_noise(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers in [−1, 1) that depend on each element's value and the seed: equal elements are rounded equally."""
    bits = t.detach().to(torch.float64).contiguous().view(torch.int64)
    mixed = (bits + seed * 0x2545F4914F6CDD1D % (1 << 62)) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 29)) * -0x40A7B892E31B1A47
    return ((mixed >> 32) & 0xFFFFFF).to(torch.float64) / (1 << 23) - 1
