"""How a program is computed again: in its own dtypes, in float64, with random last bits, or less precisely.

Whatever walks a program asks here: a replay of an FX graph node by node, or a call that is run again operator by
operator. A nudged run uses the program's own arithmetic with every result that was rounded moved by a few units in the
last place, at random, as Verrou and Verificarlo do. What differs between such runs is noise; a compiled result outside
of it is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

import torch

from torchsan.reference import users_kernels
from torchsan.reference.aside import Unavailable as Unavailable
from torchsan.reference.aside import aside
from torchsan.reference.nudge import (
    Nudger,
    is_unwritten,
    looks_at_bits,
    map_tensors,
    memory_of,
    rounds,
    tensors_in,
    written,
)
from torchsan.torch_internals.operators import is_own, random_kept, with_gradient


class Arithmetic(StrEnum):
    """How a program is computed again."""

    EAGER = "eager"
    """In the program's own dtypes."""
    EXACT = "exact"
    """In float64 and complex128."""
    NUDGED = "nudged"
    """In the program's own dtypes, with random last bits."""
    USUAL = "usual"
    """The same, with long sums moved by what they usually lose, and not by all that they may."""
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


TEXTBOOK_RUNS = 1 + len(_TEXTBOOK)
"""How many seeds a run by textbook formulas has: all of them, and each alone."""


def _textbook(seed: int) -> Collection[str]:
    return _TEXTBOOK if seed == 0 else [list(_TEXTBOOK)[seed - 1]]


_NUDGED = (Arithmetic.NUDGED, Arithmetic.USUAL)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_UNWRITTEN = 1.3125
"""What `torch.empty` holds: graphs that mean the same have to agree, and one that relies on zeros has to stand out."""
_OWN = ("aten", "prims")
"""PyTorch's own operators. Another one has the dtypes that it was written for."""
_WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}


RandomNumbers = Callable[["Operators", Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]], Any]
"""Returns what a random operator gives, called with these arguments; the last one runs it as if it were not random.

Raises Unavailable if its numbers cannot be drawn again."""


def _of_the_users(func: Any, compute: Callable[[], Any]) -> Any:
    """Run an operator that is not PyTorch's own. What it draws is another number each time."""
    with random_kept() as drew:
        result = compute()
        if drew():
            raise Unavailable(f"{func} draws random numbers")
    return result


class Operators:
    """Computes operators in one arithmetic."""

    def __init__(self, arithmetic: Arithmetic, seed: int, random: RandomNumbers) -> None:
        """`seed` chooses the noise of a nudged run; `random` draws for the operators that are random."""
        self._arithmetic = arithmetic
        self._seed = seed
        self._nudger = Nudger(seed, usual=arithmetic is Arithmetic.USUAL)
        self._random = random

    def given(self, value: Any) -> Any:
        """Tensors that no operator computed, such as inputs and constants, as this arithmetic has them."""
        if self._arithmetic in (Arithmetic.EXACT, Arithmetic.ROUGH):
            return map_tensors(widened, value)
        return map_tensors(self._narrowed, value) if self._arithmetic in _NARROW else value

    def given_to_users_kernel(self, value: Any) -> Any:
        """The same in copies that a user's kernel may overwrite, and read by the strides that the program has."""
        wide = self._arithmetic in (Arithmetic.EXACT, Arithmetic.ROUGH)
        return map_tensors(lambda t: users_kernels.copied(t, wide_dtype(t.dtype) if wide else None), value)

    def _narrowed(self, t: torch.Tensor) -> torch.Tensor:
        return _NARROW[self._arithmetic](t) if t.is_floating_point() else t

    def rounded(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor that was computed in the program's dtypes, and whose last bits are therefore open."""
        return self._nudger.last_bit(t) if self._arithmetic in _NUDGED else self.given(t)

    def call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own_dtypes: Callable[[], Arguments]
    ) -> Any:
        """Return the result of an operator.

        `own_dtypes` returns the arguments in the dtypes that the program gives the operator, and raises Unavailable if
        they are not known. It is asked where the operator has no meaning in float64.
        """
        compute = functools.partial(self._compute, func, args, kwargs, own_dtypes)
        if not is_own(func):
            users = functools.partial(_of_the_users, func, compute)
            compute = functools.partial(aside, users, written=tensors_in((args, kwargs)))
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
                return _defined(func, func(*args, **kwargs))
            case Arithmetic.NUDGED | Arithmetic.USUAL:
                return self._nudger.result(func, args, kwargs)
            case Arithmetic.EXACT:
                return _defined(func, self._in_float64(func, args, kwargs, own_dtypes))
            case Arithmetic.ROUGH:
                result = self._in_float64(func, args, kwargs, own_dtypes)
                if func._schema.is_mutable or not rounds(func, args, kwargs):
                    return self._nudger.undefined(func._opname, result)
                return map_tensors(self._nudger.like_float32, result)
            case Arithmetic.CONTIGUOUS:
                return _on_contiguous(func, args, kwargs)
            case Arithmetic.TEXTBOOK:
                name = func._opname.removesuffix("_")
                plain = _TEXTBOOK.get(name) if func.namespace in _OWN and name in _textbook(self._seed) else None
                return func(*args, **kwargs) if plain is None or len(args) != 1 else plain(args[0])
            case _:
                result = func(*args, **kwargs)
                if func._schema.is_mutable or not rounds(func, args, kwargs):
                    return result
                # A custom operator may return what it was given: a copy would have another meaning.
                memory = memory_of((args, kwargs))
                return map_tensors(lambda t: self._narrowed(t) if memory_of(t).isdisjoint(memory) else t, result)

    def _in_float64(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own_dtypes: Callable[[], Arguments]
    ) -> Any:
        mutable = func._schema.is_mutable
        if func.namespace in _OWN and not looks_at_bits(func):
            # What is overwritten has to be the tensor itself, so it is not replaced by a wider one.
            wide = [_wide_dtypes(a if mutable else map_tensors(widened, a)) for a in (args, kwargs)]
            try:
                result = with_gradient(func)(*wide[0], **wide[1])
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
    if torch.Tag.pointwise not in func.tags and rounds(func, args, kwargs) and not func._schema.is_mutable:
        args_, kwargs_ = map_tensors(lambda t: t.contiguous(), (args, kwargs))
        result = func(*args_, **kwargs_)
        if memory_of(result).isdisjoint(memory_of((args_, kwargs_))):
            return result
    return func(*args, **kwargs)


def _defined(func: Any, result: Any) -> Any:
    """The result of an operator; with a number in each element, if it is memory that nobody has written."""
    unwritten = func.namespace in _OWN and is_unwritten(func._opname)
    return map_tensors(lambda t: t.fill_(_UNWRITTEN), result) if unwritten else result


def widened(t: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128; integers, truth values and weights that oneDNN packed as they are."""
    return t if t.is_mkldnn else t.to(wide_dtype(t.dtype))


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
