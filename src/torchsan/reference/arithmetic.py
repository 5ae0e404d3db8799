"""How a rung computes: in the program's dtypes, in float64, or with random last bits; with dice that fall alike.

A dispatch mode, because Dynamo's graph holds functions and methods where AOTAutograd's holds operators, and because the
backward of the eager graph has no nodes at all: all of them end in operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsan.reference.nudge import Nudger
from torchsan.reference.replay import Arithmetic
from torchsan.torch_internals.dispatch import TorchDispatchMode


class Unsupported(Exception):
    """The arithmetic has no meaning for an operator of the graph; the message says which."""


_WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
# Operators that look at the bits of a number mean something else in float64.
_BITS = frozenset(["view.dtype", "nextafter.default", "frexp.Tensor"])
# In the middle, so that it does not matter whether a graph keeps what is above 1 − p or what is below p.
_LOADED = 0.5
_UNIFORM = frozenset(["rand", "rand_like", "uniform", "uniform_"])
_NORMAL = frozenset(["randn", "randn_like", "normal", "normal_", "normal_functional"])


class Computing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate its modes
    """Runs operators in one arithmetic. Random ones draw one seed each from the program's generator.

    So the n-th random operator gets the same numbers on every rung, whichever of its forms it has there: `dropout`'s
    `bernoulli_`, the `rand` of its decomposition, or Inductor's own with its seeds.
    """

    def __init__(self, arithmetic: Arithmetic, seed: int = 0, *, loaded: bool = False) -> None:
        """`loaded` dice always fall alike: for graphs that draw the same numbers in another order or layout."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate its modes
        self._loaded = loaded
        self._exact = arithmetic is Arithmetic.EXACT
        self._nudger = Nudger(seed) if arithmetic is Arithmetic.NUDGED else None
        self.draws = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags or str(func).startswith("prims.inductor_"):
            return self._random(func, args, kwargs)
        return self._compute(func, args, kwargs)

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._exact:
            return self._in_float64(func, args, kwargs)
        if self._nudger is not None:
            return self._nudged(self._nudger, func, args, kwargs)
        return func(*args, **kwargs)

    def _in_float64(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if f"{func._opname}.{func._overloadname}" in _BITS:
            raise Unsupported(f"{func} looks at the bits of a number")
        mutable = func._schema.is_mutable
        if func.namespace not in ("aten", "prims"):
            # A custom operator has the dtypes it was written for.
            if any(t.dtype in (torch.float64, torch.complex128) for t in _tensors((args, kwargs))):
                raise Unsupported(f"{func} may not take float64")
            return _tree(widened, func(*args, **kwargs))
        wide = [_dtypes(a) if mutable else _tree(widened, _dtypes(a)) for a in (args, kwargs)]
        result = func(*wide[0], **wide[1])
        return result if mutable else _tree(widened, result)

    def _nudged(self, nudger: Nudger, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema = func._schema
        if schema.is_mutable:
            result = func(*args, **kwargs)
            for tensor in _written(schema, args, kwargs):
                if func._opname not in ("copy_", "zero_", "fill_", "detach_", "set_"):
                    tensor.copy_(nudger.last_bit(tensor))
            return result
        # A custom operator may return what it was given, whatever it declares: it gets the tensors themselves.
        if func.namespace not in ("aten", "prims") or any(r.alias_info is not None for r in schema.returns):
            return func(*args, **kwargs)
        return nudger.result(func._opname, func, args, kwargs, func)

    def _random(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func._opname
        if name == "inductor_lookup_seed":
            return args[0][args[1]].clone()
        if name in ("inductor_seed", "inductor_seeds"):
            return torch.tensor([self._seed() for _ in range(args[0] if name == "inductor_seeds" else 1)])[
                slice(None) if name == "inductor_seeds" else 0
            ]
        if name == "inductor_random":
            return self._made(list(args[0]), int(args[1]), args[2], torch.float32)
        if name == "inductor_randint":
            return self._integers(list(args[2]), int(args[3]), args[0], args[1])
        return self._eager_random(func, name, args, kwargs)

    def _eager_random(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in ("bernoulli", "bernoulli_"):
            chance: Any = args[1] if len(args) > 1 and not isinstance(args[1], torch.Generator) else None
            p = args[0] if chance is None and name == "bernoulli" else 0.5 if chance is None else chance
            drawn = self._made(args[0].shape, self._seed(), "rand", torch.float32, args[0])
            if name == "bernoulli":
                return (drawn < p).to(args[0].dtype)
            # As `dropout`, which uses it, is decomposed: kept where the number is above the chance of being dropped.
            return args[0].copy_(drawn > 1 - p)
        if name == "native_dropout" and args[2] is not False:
            drawn = self._made(args[0].shape, self._seed(), "rand", torch.float32, args[0])
            mask = drawn > args[1]
            return mask * args[0] * (1.0 / (1.0 - args[1])), mask
        state = torch.get_rng_state()
        result = self._compute(func, args, kwargs)
        if torch.equal(torch.get_rng_state(), state):
            return result  # It may be random, but is not: attention without dropout, say.
        torch.set_rng_state(state)
        if name.startswith("randint"):
            low, high = (0, args[0]) if func._overloadname in ("default", "") else (args[0], args[1])
            if name == "randint_like" or not isinstance(high, int):
                raise Unsupported(f"{func} cannot be drawn again")
            return self._integers(list(result.shape), self._seed(), low, high).to(result.dtype)
        kind = "rand" if name in _UNIFORM else "randn" if name in _NORMAL else None
        extra = [a for a in args[1:] if isinstance(a, int | float)] if name.endswith("_") else []
        if kind is None or extra not in ([], [0, 1], [0.0, 1.0]):
            raise Unsupported(f"{func} cannot be drawn again")
        made = self._made(result.shape, self._seed(), kind, result.dtype, result)
        return result.copy_(made) if name.endswith("_") else made

    def _seed(self) -> int:
        self.draws += 1
        return int(torch.randint(1 << 62, ()).item())

    def _made(
        self, size: Sequence[int], seed: int, kind: str, dtype: torch.dtype, like: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Numbers in the order of memory, which is how a decomposition draws them for a transposed tensor."""
        generator = torch.Generator().manual_seed(seed)
        draw: Callable[..., torch.Tensor] = torch.rand if kind == "rand" else torch.randn
        if self._loaded:
            drawn = torch.full(tuple(size), _LOADED)
        else:
            drawn = draw(math.prod(size), generator=generator, dtype=torch.float32)
            strides = torch.empty_like(like).stride() if like is not None else None
            drawn = drawn.reshape(tuple(size)) if strides is None else drawn.as_strided(tuple(size), strides)
        drawn = drawn.to(dtype)
        return widened(drawn) if self._exact else drawn

    def _integers(self, size: list[int], seed: int, low: int, high: int) -> torch.Tensor:
        if self._loaded:
            return torch.full(size, (low + high) // 2)
        return torch.randint(low, high, size, generator=torch.Generator().manual_seed(seed))


def widened(t: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128; integers and truth values as they are."""
    if t.is_floating_point() and t.dtype is not torch.float64:
        return t.to(torch.float64)
    return t.to(_WIDE[t.dtype]) if t.dtype in _WIDE else t


def _dtypes(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        if value in _WIDE:
            return _WIDE[value]
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, tuple | list):
        return type(value)(_dtypes(v) for v in value)
    if isinstance(value, dict):
        return {k: _dtypes(v) for k, v in value.items()}
    return value


def _written(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found: list[Any] = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[i] if i < len(args) and not argument.kwarg_only else kwargs.get(argument.name))
    return [t for t in _tensors(found) if t.is_floating_point() or t.is_complex()]


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        found.append(t)
        return t

    _tree(keep, value)
    return found


def _tree(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(_tree(function, v) for v in value)
    if isinstance(value, dict):
        return {k: _tree(function, v) for k, v in value.items()}
    return value
