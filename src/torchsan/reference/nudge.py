"""What operators round, and by how much: results moved at random by as much as rounding may have moved them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchsan.torch_internals.operators import has_storage

AMPLITUDE = 4.0
"""How far a result is moved at most, in units of the last place."""
_USUAL = 0.03
"""The part of what the partial sums of a long sum may lose that they usually do, added up in many lanes."""

_POOL = 1 << 20
_MANY = 256

# Operators whose result is one of their inputs, or a number that every format holds: nothing is rounded in them.
_EXACT = frozenset(
    """abs adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d alias amax amin aminmax arange argmax argmin
    as_strided as_strided_copy as_strided_scatter bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_in_dim
    bucketize cat ceil channel_shuffle clamp clamp_max clamp_min clone constant_pad_nd convert_element_type_exact
    copy copy_ copysign cummax cummin detach diag diag_embed diagonal diagonal_copy diagonal_scatter embedding
    empty empty_like empty_strided eq expand expand_as expand_copy eye fill flip floor fmax fmin
    fractional_max_pool2d fractional_max_pool3d full full_like gather ge gt hardshrink hardtanh heaviside imag
    index index_copy index_fill index_select inductor_force_stride_order inductor_lookup_seed inductor_randint
    inductor_random inductor_seeds iota isfinite isin isinf isnan isneginf isposinf kthvalue le lift_fresh_copy
    logical_and logical_not logical_or logical_xor lt masked_fill masked_scatter masked_select max max_pool1d
    max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices maximum median min minimum mode movedim
    nan_to_num nanmedian narrow ne neg new_empty new_empty_strided new_full new_zeros nonzero one_hot ones
    ones_like permute permute_copy pixel_shuffle pixel_unshuffle randint randperm real reciprocal_exact
    reflection_pad1d reflection_pad2d reflection_pad3d relu repeat repeat_interleave replication_pad1d
    replication_pad2d replication_pad3d reshape resolve_conj resolve_neg roll rot90 round scalar_tensor
    searchsorted select select_copy select_scatter set sign signbit slice slice_copy slice_scatter sort split
    split_with_sizes squeeze stack t take take_along_dim threshold tile topk transpose tril triu trunc unbind
    unfold unfold_copy unsqueeze unsqueeze_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d view
    view_as view_as_complex view_as_real view_copy view_of where zero zeros zeros_like _conj
    _low_memory_max_pool_offsets_to_indices _low_memory_max_pool_with_offsets _neg_view _unsafe_index _unsafe_view
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d""".split()
)

# Operators that put numbers in their places as they are, unless they are told to add them up or multiply them.
_PUTS = frozenset("index_put index_reduce put scatter scatter_reduce _index_put_impl _unsafe_index_put".split())

# Operators whose result is rounded to the nearest number, so that nothing of it is the same in all elements.
_ROUNDED_RIGHT = frozenset("add addcdiv addcmul div lerp mul reciprocal rsub sqrt square sub".split())

# Of these, those that round a product first, which may be far larger than the result.
_COMPOUND = frozenset("addcdiv addcmul lerp".split())

# Of these, those whose result in float64 tells whether anything was rounded at all.
_CHECKED = frozenset("add mul rsub sub".split())

# Functions that vectorised code approximates with an error that is absolute, in eps: near zero it is many last places.
ABSOLUTE_ERRORS = {"erf": 4.0, "erfc": 4.0, "expm1": 2.0, "gelu": 4.0}

_REDUCTIONS = frozenset("sum mean mm bmm addmm baddbmm dot mv cumsum".split())
_VARIANCES = frozenset("var var_mean std std_mean native_layer_norm native_batch_norm".split())
_MATMULS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1)}

# Operators without a bound of their own that add up half precision in single.
_SINGLE_INSIDE = re.compile(r"attention|conv|softmax|^linear$|^(?!linalg).*norm(?!.*backward)")

_BITS = frozenset(["view.dtype", "nextafter.default", "frexp.Tensor"])
"""Operators that look at the bits of a number mean something else in float64."""


def rounds(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the results of a call of an operator are rounded. A maximum, a gather or a copy is exact."""
    schema, name = func._schema, func._opname
    if name == "inductor_random":
        return True  # Normal numbers are made by logarithms and cosines.
    if name in ("convert_element_type", "_to_copy", "to") or looks_at_bits(func):
        return False
    if schema.is_mutable:
        return not _moves(func, args, kwargs)
    return not _moves(func, args, kwargs) and all(r.alias_info is None for r in schema.returns)


def _moves(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether every number in the result of a call is one of its inputs, or one that every format holds."""
    name = func._opname.removesuffix("_") if func._schema.is_mutable else func._opname
    if name not in _PUTS:
        return name in _EXACT
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)
    return not given.get("accumulate", False) and given.get("reduce") in (None, "amax", "amin")


def approximates(func: Any) -> bool:
    """Whether an operator is a function that code approximates, and not one whose result is the nearest number."""
    pointwise = torch.Tag.pointwise in getattr(func, "tags", ()) or getattr(func, "namespace", "") == "prims"
    return pointwise and func._opname.removesuffix("_") not in _ROUNDED_RIGHT and rounds(func, (), {})


def adds_up(func: Any) -> bool:
    """Whether an operator adds up many terms, whose rounding is known to be far smaller usually than it may be."""
    return getattr(func, "_opname", "") in _REDUCTIONS | _VARIANCES


def looks_at_bits(func: Any) -> bool:
    """Whether an operator's result depends on how its dtype represents numbers."""
    return f"{func._opname}.{func._overloadname}" in _BITS


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments that an operator declares to overwrite."""
    found: list[Any] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[i] if i < len(args) and not argument.kwarg_only else kwargs.get(argument.name))
    return tensors_in(found)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples and dictionaries."""
    found: list[torch.Tensor] = []
    map_tensors(found.append, value)
    return found


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same lists, tuples and dictionaries with each tensor replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(function, v) for v in value)
    if isinstance(value, dict):
        return {k: map_tensors(function, v) for k, v in value.items()}
    return value


def is_unwritten(name: str) -> bool:
    """Whether an operator of this name gives memory as it finds it."""
    return name.startswith(("empty", "new_empty"))


class Nudger:
    """Nudges results with random numbers of its own, so that the program's generator is left alone."""

    def __init__(self, seed: int, *, usual: bool = False) -> None:
        """With `usual`, long sums lose what they usually do: what lies outside is suspect, and may yet be right."""
        self._seed = seed
        self._usual = usual
        self._offset = 0

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers in [−1, 1) in the shape of `like`, from a pool: fresh ones would cost more than the replay."""
        n = like.numel()
        self._offset = (self._offset * 31 + 17) % _POOL
        repeats = -(-(n + self._offset) // _POOL)
        pool = _pool(self._seed) if repeats <= 1 else _pool(self._seed).repeat(repeats)
        return pool[self._offset : self._offset + n].reshape(like.shape).to(like.device)

    def result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and return its result with the noise that rounding may have left in it."""
        name, schema = func._opname, func._schema
        if schema.is_mutable:
            return self._overwritten(func, args, kwargs, func(*args, **kwargs))
        if name in ("convert_element_type", "_to_copy", "to"):
            return self._converted(args[0], func(*args, **kwargs))
        if _moves(func, args, kwargs) or any(r.alias_info is not None for r in schema.returns):
            return self.undefined(name, func(*args, **kwargs))
        if name in _REDUCTIONS:
            return self._reduced(name, args, func(*args, **kwargs))
        if torch.Tag.pointwise in func.tags or func.namespace == "prims":
            rounded = func(*args, **kwargs)
            compound = name in _COMPOUND or kwargs.get("alpha", 1) != 1
            moved = func(*map_tensors(self.last_bit, args), **kwargs) if compound else rounded
            result = map_tensors(self.last_bit, moved)
            if name in _CHECKED:
                return torch.where(_is_exact(func, args, kwargs, rounded), rounded, result)
            return self._approximated(result, ABSOLUTE_ERRORS[name]) if name in ABSOLUTE_ERRORS else result
        if func.namespace != "aten":
            # A custom operator may return what it was given, whatever it declares: it gets the tensors themselves.
            result = func(*args, **kwargs)
            memory, factor = memory_of((args, kwargs)), _accumulation((args, kwargs), result)
            return map_tensors(lambda t: self.last_bit(t, factor) if memory_of(t).isdisjoint(memory) else t, result)
        return self._opaque(func, args, kwargs)

    def _approximated(self, t: torch.Tensor, size: float) -> torch.Tensor:
        return t + (self.noise(t) * (size * torch.finfo(t.dtype).eps)).to(t.dtype)

    def _opaque(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Anything else: convolution, linear algebra, scatter, Fourier transforms.

        Results as good as those of inputs that were rounded, which is what a backward-stable algorithm gives, and more
        of it the more it adds up.
        """
        single = _adds_up_in_single(func, args)
        moved = self.last_bit if single or self._seed % 3 == 0 else self._one_way
        result = func(*map_tensors(moved, args), **map_tensors(moved, kwargs))
        factor = 1.0 if single else _accumulation((args, kwargs), result)
        if self._usual and func._opname in _VARIANCES:
            factor = _usual_accumulation(func._opname, args, result, args[0].dtype, factor)
        return map_tensors(lambda t: self.last_bit(t, factor), result)

    def _one_way(self, t: torch.Tensor) -> torch.Tensor:
        """Move all elements up, or all down, by some units of their last place.

        What adds up many terms, a mean or a variance, may lose as much in its partial sums, however they cancel; moved
        both ways the terms would cancel, too.
        """
        if not t.is_floating_point() or t.numel() == 0:
            return t
        eps = torch.finfo(t.dtype).eps * AMPLITUDE * (1 if self._seed % 3 == 1 else -1)
        dtype = torch.float64 if t.dtype is torch.float64 else torch.float32
        wide = t.to(dtype)
        return torch.where(torch.isfinite(wide), wide + wide.abs() * eps, wide).to(t.dtype)

    def like_float32(self, t: torch.Tensor) -> torch.Tensor:
        """Move each element by up to half a unit in the last place of float32."""
        if not (t.is_floating_point() or t.is_complex()) or t.numel() == 0:
            return t
        factors = 1 + self.noise(t).to(torch.float64) * (torch.finfo(torch.float32).eps / 2)
        return t * factors

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

    def _overwritten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """What was overwritten is memory that others see as well, so the noise goes into it, not into a copy."""
        name = func._opname.removesuffix("_")
        changed = written(func, args, kwargs)
        memory = memory_of(changed)
        for t in (*changed, *(t for t in tensors_in(result) if memory_of(t).isdisjoint(memory))):
            if name == "copy":
                t.copy_(self._converted(args[1] if len(args) > 1 else kwargs["src"], t))
            elif not _moves(func, args, kwargs):
                t.copy_(self.last_bit(t, _accumulation((args, kwargs), t)))
        return result

    def undefined(self, name: str, result: Any) -> Any:
        """What memory holds that nobody has written is anything."""
        for t in tensors_in(result) if is_unwritten(name) else ():
            memory = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
            memory.copy_(self.noise(memory).mul(1e4))
        return result

    def _converted(self, source: Any, result: torch.Tensor) -> torch.Tensor:
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
        bound = _bound(name, args, result, result.dtype, usual=self._usual)
        spread = bound.to(result.abs().dtype).nan_to_num_(0, 0, 0)
        return self.last_bit(result) + (spread * self.noise(result)).to(result.dtype)


def _is_exact(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> torch.Tensor:
    """Where a result is what the operator gives in float64, so that no code rounds it. Float64 itself is not told."""
    if not result.is_floating_point() or result.dtype is torch.float64:
        return torch.zeros((), dtype=torch.bool, device=result.device)

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t.double() if t.is_floating_point() else t

    return result == func(*map_tensors(wide, args), **map_tensors(wide, kwargs))  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=16)
def _pool(seed: int) -> torch.Tensor:
    """Numbers in [−1, 1), which nobody may change; there are few seeds."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(_POOL, generator=generator, dtype=torch.float32).mul_(2).sub_(1)


def _adds_up_in_single(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator without a bound of its own rounds only what it reads and returns to half precision."""
    halves = (torch.float16, torch.bfloat16)
    return bool(_SINGLE_INSIDE.search(func._opname)) and any(t.dtype in halves for t in tensors_in(args))


def memory_of(value: Any) -> set[int]:
    """Where the tensors lie."""
    return {t.untyped_storage().data_ptr() for t in tensors_in(value) if has_storage(t)}


def _accumulation(inputs: Any, outputs: Any) -> float:
    """How much more than one rounding a result may hold, by how many inputs there are to an output."""
    sizes = [sum(t.numel() for t in tensors_in(values)) for values in (inputs, outputs)]
    return max(1.0, math.sqrt(sizes[0] / max(1, sizes[1])) / 4)


def accumulation(func: Any, args: tuple[Any, ...], result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """How far the rounding of partial sums usually moves a result that the program has in `dtype`; None if none."""
    if torch.Tag.pointwise in func.tags or not rounds(func, args, {}) or not result.is_floating_point():
        return None
    if func._opname in _REDUCTIONS:
        return _bound(func._opname, args, result, dtype, usual=True).nan_to_num(0, 0, 0)
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    size = result.abs() + result.detach().square().mean().sqrt()
    factor = _usual_accumulation(func._opname, args, result, dtype, _accumulation(args, result))
    return (size * (eps * AMPLITUDE * factor)).nan_to_num(0, 0, 0)


def _bound(name: str, args: tuple[Any, ...], result: torch.Tensor, dtype: torch.dtype, *, usual: bool) -> torch.Tensor:
    """How far the rounding of its partial sums may move a sum, or usually does.

    Half precision is summed in single precision and rounded once.
    """
    n, size = _partial_sums(name, args, result)
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    bound = size * (eps * math.sqrt(n))
    if not usual:
        return bound
    if name not in ("sum", "mean") or n < _MANY:
        return bound * _USUAL
    # Terms that are nothing beside the partial sum are lost, always: if there are many, it is no matter of chance.
    count = n if name == "mean" else 1
    dims, keep = _dims(args, result)
    x = args[0].to(torch.float64)
    largest = x.abs().sum(dims, keepdim=True)
    place = eps * torch.exp2(largest.clamp_min(torch.finfo(torch.float32).tiny).log2().floor())
    lost = ((x / place).round() * place - x).sum(dims, keepdim=keep).abs()
    chance = 3 * math.sqrt(n / 12) * (place if keep else place.reshape(lost.shape))
    return torch.minimum(bound, bound * _USUAL + ((lost - chance).clamp_min(0) / count).to(bound.dtype))


def _dims(args: tuple[Any, ...], result: torch.Tensor) -> tuple[list[int], bool]:
    """The dimensions that a sum or mean goes over, and whether it keeps them."""
    x = args[0]
    return (args[1] if len(args) > 1 and args[1] not in (None, []) else list(range(x.dim()))), result.dim() == x.dim()


def _usual_accumulation(name: str, args: tuple[Any, ...], result: Any, dtype: torch.dtype, factor: float) -> float:
    """How much of the rounding that an operator without a bound of its own may accumulate it usually does."""
    if name not in _VARIANCES:
        return factor
    squares = args[0].detach().abs().double().square()
    groups = min(max(1, t.numel()) for t in tensors_in(result))
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    # What is nothing beside the sum of all squares may be lost, always.
    lost = torch.where(squares < 8 * eps * squares.sum() / groups, squares, 0).sum() > 1e-6 * squares.sum()
    return factor if bool(lost) else max(1.0, _USUAL * factor)


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
            dims, keep = _dims(args, result)
            magnitudes, squares = x.sum(dims, keepdim=keep), (x * x).sum(dims, keepdim=keep)
            if name == "mean":
                magnitudes, squares = magnitudes / n, squares / (n * n)
    return max(1, n), result.abs().to(wide) + squares.sqrt() + magnitudes / 8


def value_noise(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers in [−1, 1) that depend on each element's value and the seed: equal elements are rounded equally."""
    bits = t.detach().to(torch.float64).contiguous().view(torch.int64)
    mixed = (bits + seed * 0x2545F4914F6CDD1D % (1 << 62)) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 29)) * -0x40A7B892E31B1A47
    return ((mixed >> 32) & 0xFFFFFF).to(torch.float64) / (1 << 23) - 1
