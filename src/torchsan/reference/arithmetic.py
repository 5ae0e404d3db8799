"""How one operator is computed: in the program's own dtypes, in float64, or with random last bits.

Whatever walks a program asks here: a replay of an FX graph node by node, or a call that is run again operator by
operator. A nudged run uses the program's own arithmetic with every result that was rounded moved by a few units in the
last place, at random, as Verrou and Verificarlo do. What differs between such runs is noise; a compiled result outside
of it is not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch

from torchsan.reference import users_kernels


class Arithmetic(StrEnum):
    """How a program is computed again."""

    EAGER = "eager"
    """In the program's own dtypes."""
    EXACT = "exact"
    """In float64 and complex128."""
    NUDGED = "nudged"
    """In the program's own dtypes, with random last bits."""
    ROUGH = "rough"
    """In float64, with every result that is rounded moved by as much as float32 rounds."""
    BFLOAT16 = "bfloat16"
    """In the program's own dtypes, with inputs and results rounded to bfloat16."""
    FLOAT16 = "float16"
    TF32 = "tf32"
    FLOAT32 = "float32"
    CONTIGUOUS = "contiguous"
    """In the program's own dtypes, with contiguous operands for all that is not computed element by element."""
    TEXTBOOK = "textbook"
    """In the program's own dtypes, with `log1p`, `expm1` and the like by the formulas that they are there to avoid."""


_NARROW: dict[Arithmetic, Callable[[torch.Tensor], torch.Tensor]] = {
    Arithmetic.BFLOAT16: lambda t: t.to(torch.bfloat16).to(t.dtype),
    Arithmetic.FLOAT16: lambda t: t.to(torch.float16).to(t.dtype),
    Arithmetic.FLOAT32: lambda t: t.to(torch.float32).to(t.dtype),
    Arithmetic.TF32: lambda t: _tf32(t.to(torch.float32)).to(t.dtype),
}


def _tf32(t: torch.Tensor) -> torch.Tensor:
    """Rounded to the ten bits that tensor cores keep of a float32."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def explanations(dtype: torch.dtype) -> tuple[Arithmetic, ...]:
    """The arithmetics that give less precise results than this dtype's own: what may explain a loss of precision."""
    match dtype:
        case torch.float64 | torch.complex128:
            return (Arithmetic.FLOAT32, Arithmetic.TEXTBOOK)
        case torch.float32:
            return (Arithmetic.BFLOAT16, Arithmetic.FLOAT16, Arithmetic.TF32, Arithmetic.TEXTBOOK)
        case torch.float16:
            return (Arithmetic.BFLOAT16, Arithmetic.TEXTBOOK)
        case _:
            return (Arithmetic.TEXTBOOK,)


_TEXTBOOK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log1p": lambda x: (1 + x).log(),
    "expm1": lambda x: x.exp() - 1,
    "erfc": lambda x: 1 - x.erf(),
    "log_sigmoid": lambda x: x.sigmoid().log(),
    "softplus": lambda x: (1 + x.exp()).log(),
    "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    "asinh": lambda x: (x + (x * x + 1).sqrt()).log(),
    "atanh": lambda x: ((1 + x) / (1 - x)).log() / 2,
}


class Unavailable(Exception):
    """Something cannot be computed again; the message says what and why."""


Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_OWN = ("aten", "prims")
"""PyTorch's own operators. Another one has the dtypes that it was written for."""
_BITS = frozenset(["view.dtype", "nextafter.default", "frexp.Tensor"])
"""Operators that look at the bits of a number mean something else in float64."""
_WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}


RandomNumbers = Callable[["Operators", Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
"""Returns what a random operator gives, called with these arguments; the last one runs it as if it were not random.

Raises Unavailable if its numbers cannot be drawn again."""


class Operators:
    """Computes operators in one arithmetic."""

    def __init__(self, arithmetic: Arithmetic, seed: int, random: RandomNumbers) -> None:
        """`seed` chooses the noise of a nudged run; `random` draws for the operators that are random."""
        self._arithmetic = arithmetic
        self._seed = seed
        self._nudger = Nudger(seed)
        self._random = random

    def given(self, value: Any) -> Any:
        """Tensors that no operator computed, such as inputs and constants, as this arithmetic has them."""
        if self._arithmetic in (Arithmetic.EXACT, Arithmetic.ROUGH):
            return map_tensors(widened, value)
        return map_tensors(self._narrowed, value) if self._arithmetic in _NARROW else value

    def _narrowed(self, t: torch.Tensor) -> torch.Tensor:
        return _NARROW[self._arithmetic](t) if t.is_floating_point() else t

    def rounded(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor that was computed in the program's dtypes, and whose last bits are therefore open."""
        return self._nudger.last_bit(t) if self._arithmetic is Arithmetic.NUDGED else self.given(t)

    def call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own_dtypes: Callable[[], Arguments]
    ) -> Any:
        """Return the result of an operator.

        `own_dtypes` returns the arguments in the dtypes that the program gives the operator, and raises Unavailable if
        they are not known. It is asked where the operator has no meaning in float64.
        """
        compute = functools.partial(self._compute, func, args, kwargs, own_dtypes)
        inductors = func.namespace == "prims" and func._opname.startswith("inductor_")
        if inductors or torch.Tag.nondeterministic_seeded in func.tags:
            return self._random(self, func, args, kwargs, compute)
        return compute()

    def users_kernel(self, call: dict[str, Any]) -> Any:
        """Run what a graph has in the place of a user's Triton kernel. Raise Unavailable if there is no reference."""
        roundings: dict[Arithmetic, Callable[[bool], Any]] = {
            Arithmetic.EXACT: lambda gpu: users_kernels.Exact(),
            Arithmetic.EAGER: lambda gpu: users_kernels.ToType(tf32=gpu),
            Arithmetic.NUDGED: lambda gpu: users_kernels.Nudged(self._seed, tf32=gpu),
            Arithmetic.ROUGH: lambda gpu: users_kernels.Rough(self._seed, tf32=False),
        }
        if self._arithmetic not in roundings:
            raise Unavailable(f"a Triton kernel of the user's own is not computed in {self._arithmetic}")
        try:
            return users_kernels.interpreted(call, roundings[self._arithmetic])
        except users_kernels.NoReference as e:
            raise Unavailable(f"no reference: {e}") from e

    def _compute(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own_dtypes: Callable[[], Arguments]
    ) -> Any:
        match self._arithmetic:
            case Arithmetic.EAGER:
                return func(*args, **kwargs)
            case Arithmetic.NUDGED:
                return self._nudger.result(func, args, kwargs)
            case Arithmetic.EXACT:
                return self._in_float64(func, args, kwargs, own_dtypes)
            case Arithmetic.ROUGH:
                result = self._in_float64(func, args, kwargs, own_dtypes)
                still = func._schema.is_mutable or not rounds(func)
                return result if still else map_tensors(self._nudger.like_float32, result)
            case Arithmetic.CONTIGUOUS:
                return _on_contiguous(func, args, kwargs)
            case Arithmetic.TEXTBOOK:
                plain = _TEXTBOOK.get(func._opname.removesuffix("_")) if func.namespace in _OWN else None
                return func(*args, **kwargs) if plain is None or len(args) != 1 else plain(args[0])
            case _:
                result = func(*args, **kwargs)
                if func._schema.is_mutable or not rounds(func):
                    return result
                # A custom operator may return what it was given: a copy would have another meaning.
                memory = _memory((args, kwargs))
                return map_tensors(lambda t: self._narrowed(t) if _memory(t).isdisjoint(memory) else t, result)

    def _in_float64(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own_dtypes: Callable[[], Arguments]
    ) -> Any:
        mutable = func._schema.is_mutable
        if func.namespace in _OWN and not looks_at_bits(func):
            # What is overwritten has to be the tensor itself, so it is not replaced by a wider one.
            wide = [_wide_dtypes(a if mutable else map_tensors(widened, a)) for a in (args, kwargs)]
            try:
                result = func(*wide[0], **wide[1])
                return result if mutable else map_tensors(widened, result)
            except (RuntimeError, NotImplementedError, TypeError):
                pass  # Not implemented for float64: computed in the program's dtypes below.
        narrow = own_dtypes()
        result = func(*narrow[0], **narrow[1])
        if mutable:
            for t, copy in zip(written(func, args, kwargs), written(func, *narrow), strict=True):
                if t is not copy:
                    t.copy_(copy)
        return map_tensors(widened, result)


def _on_contiguous(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result from copies of the tensors one after the other in memory, where such a copy means the same."""
    if torch.Tag.pointwise not in func.tags and rounds(func) and not func._schema.is_mutable:
        args_, kwargs_ = map_tensors(lambda t: t.contiguous(), (args, kwargs))
        result = func(*args_, **kwargs_)
        if _memory(result).isdisjoint(_memory((args_, kwargs_))):
            return result
    return func(*args, **kwargs)


def rounds(func: Any) -> bool:
    """Whether an operator's results are rounded. A maximum, a gather or a copy is exact."""
    schema, name = func._schema, func._opname
    if name == "inductor_random":
        return True  # Normal numbers are made by logarithms and cosines.
    if name in ("convert_element_type", "_to_copy", "to") or looks_at_bits(func):
        return False
    if schema.is_mutable:
        return name.removesuffix("_") not in _EXACT
    return name not in _EXACT and all(r.alias_info is None for r in schema.returns)


def looks_at_bits(func: Any) -> bool:
    """Whether an operator's result depends on how its dtype represents numbers."""
    return f"{func._opname}.{func._overloadname}" in _BITS


def widened(t: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128; integers and truth values as they are."""
    return t.to(wide_dtype(t.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that stands for this one in float64 arithmetic."""
    return torch.float64 if dtype.is_floating_point else _WIDE.get(dtype, dtype)


def _wide_dtypes(value: Any) -> Any:
    """Ask for float64 wherever an operator is asked for a narrower type."""
    if isinstance(value, torch.dtype):
        return wide_dtype(value)
    if isinstance(value, tuple | list):
        return type(value)(_wide_dtypes(v) for v in value)
    if isinstance(value, dict):
        return {k: _wide_dtypes(v) for k, v in value.items()}
    return value


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
    roll round scalar_tensor select select_scatter set sign slice slice_scatter sort split split_with_sizes squeeze
    stack t transpose tril triu trunc unbind unfold unsqueeze view view_of view_as_complex view_as_real view_as where
    zeros zeros_like zero _unsafe_index _unsafe_view _conj _neg_view real imag resolve_conj resolve_neg
    convert_element_type_exact""".split()
)

# Functions that vectorised code approximates with an error that is absolute, in eps: near zero it is many last places.
ABSOLUTE_ERRORS = {"erf": 4.0, "erfc": 4.0, "expm1": 2.0, "gelu": 4.0}

_REDUCTIONS = frozenset("sum mean mm bmm addmm baddbmm dot mv cumsum".split())
_MATMULS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1)}


class Nudger:
    """Nudges results with random numbers of its own, so that the program's generator is left alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
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
        if name in _EXACT or any(r.alias_info is not None for r in schema.returns):
            return self._undefined(name, func(*args, **kwargs))
        if name in _REDUCTIONS:
            return self._reduced(name, args, func(*args, **kwargs))
        if torch.Tag.pointwise in func.tags or func.namespace == "prims":
            result = map_tensors(self.last_bit, func(*args, **kwargs))
            return self._approximated(result, ABSOLUTE_ERRORS[name]) if name in ABSOLUTE_ERRORS else result
        if func.namespace != "aten":
            # A custom operator may return what it was given, whatever it declares: it gets the tensors themselves.
            result = func(*args, **kwargs)
            memory, factor = _memory((args, kwargs)), _accumulation((args, kwargs), result)
            return map_tensors(lambda t: self.last_bit(t, factor) if _memory(t).isdisjoint(memory) else t, result)
        # Anything else (convolution, linear algebra, scatter, Fourier transforms): results as good as those of inputs
        # that were rounded, which is what a backward-stable algorithm gives, and more of it the more it adds up.
        moved = self.last_bit if self._seed % 3 == 0 else self._one_way
        result = func(*map_tensors(moved, args), **map_tensors(moved, kwargs))
        factor = _accumulation((args, kwargs), result)
        return map_tensors(lambda t: self.last_bit(t, factor), result)

    def _approximated(self, t: torch.Tensor, size: float) -> torch.Tensor:
        return t + (self.noise(t) * (size * torch.finfo(t.dtype).eps)).to(t.dtype)

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
        memory = _memory(changed)
        for t in (*changed, *(t for t in tensors_in(result) if _memory(t).isdisjoint(memory))):
            if name == "copy":
                t.copy_(self._converted(args[1] if len(args) > 1 else kwargs["src"], t))
            elif name not in _EXACT:
                t.copy_(self.last_bit(t, _accumulation((args, kwargs), t)))
        return result

    def _undefined(self, name: str, result: Any) -> Any:
        """What memory holds that nobody has written is anything."""
        if name.startswith(("empty", "new_empty")):
            return map_tensors(lambda t: self.noise(t).mul(1e4).to(t.dtype) if t.numel() else t, result)
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


def _memory(value: Any) -> set[int]:
    """Where the tensors lie."""
    return {t.untyped_storage().data_ptr() for t in tensors_in(value)}


def _accumulation(inputs: Any, outputs: Any) -> float:
    """How much more than one rounding a result may hold, by how many inputs there are to an output."""
    sizes = [sum(t.numel() for t in tensors_in(values)) for values in (inputs, outputs)]
    return max(1.0, math.sqrt(sizes[0] / max(1, sizes[1])) / 4)


def accumulation(func: Any, args: tuple[Any, ...], result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """How far the rounding of partial sums may move a result that the program has in `dtype`; None if there are none.

    Half precision is summed in single precision.
    """
    if torch.Tag.pointwise in func.tags or not rounds(func) or not result.is_floating_point():
        return None
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    if func._opname in _REDUCTIONS:
        n, size = _partial_sums(func._opname, args, result)
        return (size * (eps * math.sqrt(n))).nan_to_num(0, 0, 0)
    size = result.abs() + result.detach().square().mean().sqrt()
    return (size * (eps * AMPLITUDE * _accumulation(args, result))).nan_to_num(0, 0, 0)


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


def value_noise(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers in [−1, 1) that depend on each element's value and the seed: equal elements are rounded equally."""
    bits = t.detach().to(torch.float64).contiguous().view(torch.int64)
    mixed = (bits + seed * 0x2545F4914F6CDD1D % (1 << 62)) * -0x61C8864680B583EB
    mixed = (mixed ^ (mixed >> 29)) * -0x40A7B892E31B1A47
    return ((mixed >> 32) & 0xFFFFFF).to(torch.float64) / (1 << 23) - 1
