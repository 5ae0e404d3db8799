"""Numbers that tell, for one tensor of a trial: ordinary ones, and those on which kernels go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]

ORDINARY = "normal"
PATTERNS = (
    ORDINARY,
    "small integers",
    "large",
    "zeros",
    "sorted",
    "offset",
    "ones",
    "rising steps",
    "cancelling",
    "falling steps",
    "tiny",
    "equal rows",
    "one peak",
    "infinite",
    "minus infinity",
    "not a number",
    "extreme",
    "other sign",
)
EXOTIC_VALUES = frozenset({"infinite", "minus infinity", "not a number", "extreme", "other sign"})
TIES = frozenset({"zeros", "ones", "equal rows", "small integers", "one peak"})
"""Patterns with equal elements: which of them is the largest is nobody's to say."""
ILL_CONDITIONED = frozenset({"offset", "cancelling"})
"""Patterns on which an algorithm that is right in exact arithmetic may lose all digits."""
_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Which numbers a tensor of the example may hold."""

    sign: int = 0
    """1 if the example's are all positive, 0 if not."""
    choices: tuple[float, ...] = ()
    """The only numbers, if there are few: a mask, say."""
    low: int = 0
    high: int = 0
    """Integers lie in between, both included."""
    discrete: bool = False
    kept: bool = False
    """Real numbers of which many occur twice: made by a rule, such as a table of angles, that cannot be made up."""
    offsets: bool = False
    """Integers that rise from 0: offsets into something, which cannot be made up."""


def domain_of(t: torch.Tensor) -> Domain:
    """Look at a tensor of the example."""
    values = t.detach().flatten()
    if t.dtype is torch.bool:
        return Domain(discrete=True, low=0, high=1)
    if not t.is_floating_point() and not t.is_complex():
        if not t.numel():
            return Domain(discrete=True)
        rising = t.dim() == 1 and t.numel() > 2 and int(values[0]) == 0 and bool((values[1:] > values[:-1]).all())
        # 0, 1, 2, … are as often positions, which may be anything in range.
        counted = rising and int(values[-1]) == t.numel() - 1
        return Domain(discrete=True, low=int(values.min()), high=int(values.max()), offsets=rising and not counted)
    if t.is_complex() or not t.numel():
        return Domain()
    real = values.to(torch.float64)
    different = torch.unique(real)
    if 1 < len(different) <= _FEW and t.numel() >= 4 * _FEW:
        return Domain(choices=tuple(different.tolist()))
    if _repeats(real, t.dtype):
        return Domain(kept=True)
    return Domain(sign=int(bool((real >= 0).all()) and bool((real != 0).any())))


def _repeats(real: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether many numbers that are neither whole nor rounded to half precision occur more than once."""
    odd = real[torch.isfinite(real) & (real != real.round())]
    different = len(torch.unique(odd))
    return dtype in (torch.float32, torch.float64) and len(odd) >= 4 * _FEW and 1 < different < 0.7 * len(odd)


def draw(
    random: np.random.Generator,
    domain: Domain,
    pattern: str,
    size: Sequence[int],
    dtype: torch.dtype,
    sizes: Mapping[int, int],
) -> torch.Tensor:
    """Return a contiguous tensor of a domain's numbers in a pattern; `sizes` are the new ones of the example's."""
    shape = tuple(size)
    if domain.discrete:
        return _integers(random, domain, shape, dtype, sizes)
    if domain.choices:
        return torch.from_numpy(random.choice(domain.choices, shape)).to(dtype).reshape(shape)
    values = _floats(random, pattern, shape, dtype)
    if domain.sign:
        values = np.abs(values) * (-1 if pattern == "other sign" else 1)
    if dtype.is_complex:
        values = values + 1j * _floats(random, pattern, shape, dtype)
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype).reshape(shape)


def _integers(
    random: np.random.Generator, domain: Domain, shape: tuple[int, ...], dtype: torch.dtype, sizes: Mapping[int, int]
) -> torch.Tensor:
    high = domain.high
    # Indices into a dimension that is shorter now are smaller now: the least size above all of them is that dimension.
    bounds = [(old, new) for old, new in sizes.items() if old > domain.high]
    if domain.low >= 0 and bounds and dtype is not torch.bool:
        high = min(high, max(0, min(bounds)[1] - 1))
    low = min(domain.low, high)
    return torch.from_numpy(random.integers(low, high, shape, endpoint=True)).to(dtype).reshape(shape)


_SPECIAL = {"infinite": np.inf, "minus infinity": -np.inf, "not a number": np.nan}
_SIMPLE: dict[str, Callable[[Floats], Floats]] = {
    "small integers": lambda x: np.round(x * 1.5),
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "large": lambda x: x * 300,
}


def _floats(random: np.random.Generator, pattern: str, shape: tuple[int, ...], dtype: torch.dtype) -> Floats:
    x: Floats = random.standard_normal(shape)
    n = shape[-1] if shape else 1
    along = np.arange(n, dtype=np.float64) / max(1, n - 1)
    info = torch.finfo(dtype)
    match pattern:
        case "offset":
            return x + (1000 if info.eps < 1e-4 else 64)
        case "sorted":
            return np.sort(x * 4, axis=-1) if shape else x
        case "rising steps":
            return x + (along * 160 - 80) if shape else x
        case "falling steps":
            return x - (along * 160 - 80) if shape else x
        case "cancelling":
            return _cancelling(random, x, n)
        case "tiny":
            return x * info.tiny * 0.25
        case "equal rows":
            return np.broadcast_to(np.round(x[..., :1] * 4) / 2, shape).copy() if shape else x
        case "one peak":
            x = x * 0.01
            if x.size:
                x.reshape(-1)[random.integers(x.size)] = 60.0
            return x
        case "extreme":
            return x * info.max * 0.2
    if pattern in _SPECIAL:
        return np.where(random.random(shape) < 0.05, _SPECIAL[pattern], x)
    return _SIMPLE[pattern](x) if pattern in _SIMPLE else x


def _cancelling(random: np.random.Generator, x: Floats, n: int) -> Floats:
    """Large numbers and their opposites, in another order, and small ones: sums of which little is left."""
    if x.ndim == 0 or n < 4:
        return x
    half = n // 2
    result = x.copy()
    result[..., :half] *= 100
    result[..., half : 2 * half] = -result[..., :half][..., random.permutation(half)]
    return result
