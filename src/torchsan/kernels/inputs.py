"""Inputs that tell: from one example, a plan of seeded trials with other sizes, layouts and values.

A trial is data: it says everything about its inputs, so that it can be made again byte for byte, and made smaller. It
stays within what the example implies: as many dimensions, the same dtypes, sizes that are equal in the example are
equal in every trial, numbers with the example's sign. What goes beyond that is marked `exotic`: empty tensors, layouts
and dtypes that the example does not have, numbers that are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from torchsan.kernels.values import EXOTIC_VALUES, ORDINARY, PATTERNS, Domain, domain_of, draw

Leaves = list[Any]
LAYOUTS = ("as given", "offset", "transposed", "padded rows", "every second", "expanded", "channels last")
EXOTIC_LAYOUTS = frozenset(LAYOUTS[2:])
_DIMENSIONS = {"transposed": 2, "padded rows": 2, "expanded": 2, "channels last": 4}
"""How many a tensor must have for a layout, if more than one."""
_TIED_FROM = 8
"""A number among the arguments that equals a size this large is taken to be that size."""
_MOST_ELEMENTS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of inputs. `sizes` are those of the example's distinct sizes, in its order; None keeps them all.

    `tied` says whether numbers among the arguments follow the sizes that they are equal to in the example.
    """

    seed: int
    sizes: tuple[int, ...] | None = None
    values: str = ORDINARY
    layout: str = "as given"
    scalars: bool = False
    tied: bool = True
    dtype: str | None = None
    """What all real numbers are, if not what the example has: `float16`, say."""
    given: bool = False
    """The inputs are exactly those that the user gave for this seed."""

    @property
    def exotic(self) -> bool:
        """Whether the inputs go beyond what the example implies."""
        empty = self.sizes is not None and 0 in self.sizes
        other = self.dtype is not None or self.layout in EXOTIC_LAYOUTS
        return empty or other or self.values in EXOTIC_VALUES


def flatten(value: Any) -> tuple[Leaves, Callable[[Sequence[Any]], Any]]:
    """Return what lists, tuples and dictionaries hold, and a function that puts such leaves back into their places."""
    leaves: Leaves = []

    def walk(v: Any) -> Callable[[Sequence[Any]], Any]:
        if isinstance(v, dict):
            parts = {k: walk(x) for k, x in v.items()}
            return lambda new: {k: part(new) for k, part in parts.items()}
        if type(v) in (list, tuple):
            kind, items = type(v), [walk(x) for x in v]
            return lambda new: kind(item(new) for item in items)
        place = len(leaves)
        leaves.append(v)
        return lambda new: new[place]

    return leaves, walk(value)


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """What was given as inputs, taken apart."""

    leaves: Leaves
    rebuild: Callable[[Sequence[Any]], Any]
    domains: dict[int, Domain]
    symbols: tuple[int, ...]
    """The distinct sizes above 1 of its tensors."""
    fixed: bool = False
    """Sizes and integers stay as they are."""
    same: dict[int, int] = field(default_factory=dict)
    """Leaves that are the very tensor of an earlier one."""

    @classmethod
    def of(cls, args: tuple[Any, ...], *, fixed: bool = False) -> Example:
        """Take an example apart."""
        leaves, rebuild = flatten(args)
        tensors = {i: a for i, a in enumerate(leaves) if isinstance(a, torch.Tensor)}
        sizes = dict.fromkeys(s for t in tensors.values() for s in t.shape if s > 1)
        domains = {i: domain_of(t) for i, t in tensors.items()}
        first: dict[int, int] = {}
        same = {i: f for i, t in tensors.items() if (f := first.setdefault(id(t), i)) != i}
        fixed = fixed or any(d.offsets or d.kept for d in domains.values())
        return cls(leaves, rebuild, domains, tuple(sizes), fixed, same)

    def make(self, trial: Trial) -> Leaves:
        """Return the leaves of a trial's inputs."""
        new = dict(zip(self.symbols, trial.sizes, strict=True)) if trial.sizes is not None else {}
        largest = max((t.numel() for t in self.leaves if isinstance(t, torch.Tensor)), default=0)
        made: Leaves = []
        for i, leaf in enumerate(self.leaves):
            if i in self.same:
                made.append(made[self.same[i]])
            elif isinstance(leaf, torch.Tensor):
                # Weights and the like stay ordinary: zeros everywhere say little.
                pattern = trial.values if leaf.numel() * 2 >= largest else ORDINARY
                made.append(self._tensor(i, leaf, trial, new, pattern))
            else:
                made.append(self._number(leaf, trial, new))
        return made

    def _tensor(self, i: int, leaf: torch.Tensor, trial: Trial, new: dict[int, int], pattern: str) -> torch.Tensor:
        size = [new.get(s, s) for s in leaf.shape]
        domain = self.domains[i]
        if (domain.discrete and self.fixed) or domain.kept:
            return leaf.detach().clone() if leaf.numel() else leaf.detach()
        random = np.random.default_rng([trial.seed, i])
        dtype = getattr(torch, trial.dtype) if trial.dtype and leaf.is_floating_point() else leaf.dtype
        values = draw(random, domain, pattern, size, dtype, new)
        layout = trial.layout
        if i and layout == "transposed":
            layout = "as given"  # All transposed alike is the one layout that a kernel may get away with.
        t = _laid_out(values, layout, leaf)
        return t.requires_grad_() if leaf.requires_grad and t.is_floating_point() else t

    def _number(self, leaf: Any, trial: Trial, new: dict[int, int]) -> Any:
        if type(leaf) is int and trial.tied and leaf >= _TIED_FROM:
            if leaf in new:
                return new[leaf]
            for t in self.leaves:
                if isinstance(t, torch.Tensor) and t.numel() == leaf:
                    return int(np.prod([new.get(s, s) for s in t.shape]))
        if type(leaf) is float and trial.scalars and np.isfinite(leaf):
            return leaf * (0.75 if 0.5 < leaf < 1 else 1.5)
        return leaf


def _laid_out(values: torch.Tensor, layout: str, like: torch.Tensor) -> torch.Tensor:
    """The values in another layout; one that does not apply to a tensor leaves it as the example has it."""
    last = values.shape[-1] if values.dim() else 0
    match layout:
        case "offset" if values.numel():
            base = torch.zeros(values.numel() + 3, dtype=values.dtype)
            return base[3:].view(values.shape).copy_(values)
        case "transposed" if values.dim() >= 2:
            return values.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "padded rows" if values.dim() >= 2:
            return torch.zeros((*values.shape[:-1], last + 5), dtype=values.dtype)[..., :last].copy_(values)
        case "every second" if values.dim() >= 1:
            return torch.zeros((*values.shape[:-1], last * 2), dtype=values.dtype)[..., ::2].copy_(values)
        case "expanded" if values.dim() >= 2 and values.shape[0] > 1:
            return values[:1].clone().expand(values.shape)
        case "channels last" if values.dim() == 4:
            return values.contiguous(memory_format=torch.channels_last)
    return _as_given(values, like)


def _as_given(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """In the example's order of dimensions; dimensions that it repeats are repeated."""
    if like.is_contiguous() or like.dim() != values.dim():
        return values
    strides: tuple[int, ...] = like.stride()
    order = sorted(range(like.dim()), key=lambda d: (-strides[d], d))
    result = values.permute(order).contiguous().permute([order.index(d) for d in range(like.dim())])
    for d in range(like.dim()):
        if like.stride(d) == 0 and like.shape[d] > 1 and result.shape[d] > 0:
            result = result.narrow(d, 0, 1).expand(values.shape)
    if like.dim() and like.stride(-1) > 1 and min(like.stride()) > 1:
        return _laid_out(result, "every second", result)
    return result


def _in_turns(plain: list[Trial]) -> Iterator[Trial]:
    """Sizes and values in turns, so that a short budget sees some of each."""
    of_sizes, of_values = [t for t in plain if t.sizes is not None], [t for t in plain if t.sizes is None]
    while of_sizes or of_values:
        yield from (part.pop(0) for part in (of_sizes, of_values) if part)


def plan(example: Example, seed: int, *, seeds: int, function: bool) -> Iterator[Trial]:
    """Yield the trials to make, the most telling first. Which of them are valid, the reference says.

    With a `function` from seeds to inputs, half of them are its own.
    """
    count = _numbered(seed)
    for _ in range(max(1, seeds // 2) if function else 1):
        yield Trial(seed=next(count), given=True)
    ordinary = [Trial(seed=next(count))]
    if any(type(leaf) is float for leaf in example.leaves):
        ordinary.append(Trial(seed=next(count), scalars=True))
    values = [Trial(seed=next(count), values=p) for p in _patterns(example)]
    sizes = [] if example.fixed else [Trial(seed=next(count), sizes=s) for s in _sizes(example)]
    layouts = [Trial(seed=next(count), layout=name) for name in LAYOUTS[1:] if _applies(name, example)]
    dtypes = [] if example.fixed else [Trial(seed=next(count), dtype=name) for name in _dtypes(example)]
    yield from ordinary
    yield from _in_turns([t for t in (*sizes, *values, *layouts) if not t.exotic])
    yield from (t for t in (*sizes, *values, *layouts, *dtypes) if t.exotic)
    while True:
        yield Trial(seed=next(count), given=function)


def _numbered(seed: int) -> Iterator[int]:
    while True:
        yield seed
        seed += 1


def _patterns(example: Example) -> list[str]:
    """The patterns of values that say something about this example, beside ordinary ones."""
    signed = any(d.sign for d in example.domains.values())
    return [p for p in PATTERNS if p != ORDINARY and (signed or p != "other sign")]


def _applies(layout: str, example: Example) -> bool:
    """Whether some tensor of the example can have this layout."""
    most = max((t.dim() for t in example.leaves if isinstance(t, torch.Tensor)), default=0)
    return most >= _DIMENSIONS.get(layout, 1)


def _dtypes(example: Example) -> list[str]:
    """Other dtypes for the real numbers of an example that has them in one."""
    reals = {t.dtype for t in example.leaves if isinstance(t, torch.Tensor) and t.is_floating_point()}
    names = ("float64", "bfloat16", "float16", "float32")
    return [n for n in names if getattr(torch, n) not in reals] if len(reals) == 1 else []


def _sizes(example: Example) -> Iterator[tuple[int, ...]]:
    """Sizes that tell: one off, prime, ragged, 1, larger than one block, empty; multiples where those are needed."""
    symbols = example.symbols
    if not symbols:
        return
    seen = {symbols}
    for make in _CHANGES:
        for sizes in _products(symbols, tuple(make(s, i) for i, s in enumerate(symbols))):
            if sizes not in seen and _elements(example, sizes) <= max(_MOST_ELEMENTS, 2 * _elements(example, symbols)):
                seen.add(sizes)
                yield sizes
    for i in range(len(symbols)):
        yield tuple(0 if i == j else s for j, s in enumerate(symbols))


_PRIMES = (3, 7, 17, 31, 61, 127, 251, 509, 1021, 2039)


def _prime(size: int) -> int:
    return max((p for p in _PRIMES if p <= size), default=2)


_CHANGES: tuple[Callable[[int, int], int], ...] = (
    lambda s, i: s + 1,
    lambda s, i: max(1, s - 1),
    lambda s, i: (3, 17, 5, 7, 2)[i % 5],
    lambda s, i: 1,
    lambda s, i: 6,
    lambda s, i: s if i else 1,
    lambda s, i: 2 * s + 1,
    lambda s, i: s if i % 2 == 0 else 1,
    lambda s, i: _prime(s),
    lambda s, i: (1, 2, 3, 4, 5)[i % 5],
    lambda s, i: 2 * s,
    lambda s, i: s // 2 or 1,
    lambda s, i: s if i % 2 == 0 else 2 * s + 3,
    lambda s, i: (2, 33, 3, 9, 2)[i % 5],
    lambda s, i: (5, 129, 2, 3, 2)[i % 5],
    lambda s, i: (2, 1025, 2, 2, 2)[i % 5],
    lambda s, i: (1027, 3, 2, 2, 2)[i % 5],
    lambda s, i: (1, 257, 3, 2, 1)[i % 5],
)


def _products(symbols: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The sizes as they are; and with those that are products of others in the example as products here too."""
    yield sizes
    tied = list(sizes)
    for k, whole in enumerate(symbols):
        for i, a in enumerate(symbols):
            if i != k and whole % a == 0 and whole // a in (2, 3, 4, *symbols[:k], *symbols[k + 1 :]):
                other = whole // a
                tied[k] = sizes[i] * (sizes[symbols.index(other)] if other in symbols else other)
    if tuple(tied) != sizes:
        yield tuple(tied)


def _elements(example: Example, sizes: tuple[int, ...]) -> int:
    new = dict(zip(example.symbols, sizes, strict=True))
    shapes = [[new.get(s, s) for s in t.shape] for t in example.leaves if isinstance(t, torch.Tensor)]
    return max((int(np.prod(shape)) for shape in shapes), default=0)


def untied(trial: Trial) -> Trial:
    """The same with the numbers among the arguments as the example has them."""
    return replace(trial, tied=False)
