"""Mean and standard deviation of many numbers, from those of their parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from torchsan.tensors.elements import Array

__all__ = ["Moments", "of_floats", "of_integers"]

# Below this a float64 pass costs nothing that anybody notices.
_SMALL = 1 << 16
_RUN = 1 << 15


@dataclass(frozen=True, slots=True)
class Moments:
    """How many numbers, their mean, and their standard deviation (of the population).

    The mean of integers is a Fraction: at 2**63 a float would lose what tells neighbours apart.
    """

    count: int
    mean: float | Fraction
    std: float

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of numbers together (Chan et al.), overflowing only if the result does."""
        count = self.count + other.count
        here, there = self.count / count, other.count / count
        spread = math.sqrt(here * there)
        if isinstance(self.mean, Fraction) and isinstance(other.mean, Fraction):
            mean: float | Fraction = (self.mean * self.count + other.mean * other.count) / count
            apart = float(other.mean - self.mean) * spread
        else:
            mean = float(self.mean) * here + float(other.mean) * there
            apart = float(other.mean) * spread - float(self.mean) * spread
        return Moments(count, mean, math.hypot(math.sqrt(here) * self.std, math.sqrt(there) * other.std, apart))


def of_floats(x: Array, top: float) -> Moments:
    """Return the moments of the finite floats `x`, none above `top` in magnitude; there is at least one."""
    return (None if x.size <= _SMALL else _quick(x, top)) or _careful(x, top)


def of_integers(x: Array, low: int) -> Moments:
    """Return the moments of the integers `x`, none below `low`; the mean is exact."""
    # In unsigned arithmetic the difference to the minimum is exact whatever the dtype.
    above = x.view(f"u{x.itemsize}") - np.array(low).astype(x.dtype).view(f"u{x.itemsize}")
    if x.itemsize == 8:
        total = (int((above >> np.uint64(32)).sum()) << 32) + int((above & np.uint64(0xFFFFFFFF)).sum())
    else:
        total = int(above.sum(dtype=np.uint64))
    spread = above.astype(np.float64)
    return Moments(x.size, low + Fraction(total, x.size), _careful(spread, float(spread.max())).std)


def _quick(x: Array, top: float) -> Moments | None:
    """Return the moments by sums in the precision of `x`, or None where these would lose too much."""
    # Squares within a safe part of the exponent range: no sum of them overflows, and what underflows does not matter.
    low, high = (2.0**-40, 2.0**50) if x.dtype == np.float32 else (2.0**-400, 2.0**480)
    if not low <= top <= high:
        return None
    # Short runs, for the sake of float32: a long sum stops hearing small terms.
    runs = (x[start : start + _RUN] for start in range(0, x.size, _RUN))
    count, squares = x.size, sum(float(np.dot(run, run)) for run in runs)
    mean = float(np.add.reduce(x)) / count
    variance = squares / count - mean * mean
    # Cancellation multiplies the rounding error of `squares`, some 4e-7 (float32) or 1e-15, by squares / variance.
    kept = 0.25 if x.dtype == np.float32 else 1e-6
    return Moments(count, mean, math.sqrt(variance)) if variance * count >= kept * squares else None


def _careful(x: Array, top: float) -> Moments:
    """Return the moments in float64, from the differences to a first mean, scaled where squares leave the range."""
    scale = 0 if top == 0 or 2.0**-400 <= top <= 2.0**480 else math.frexp(top)[1]
    wide = x.astype(np.float64)
    if scale:
        wide = np.ldexp(wide, -scale)
    first = float(np.add.reduce(wide)) / wide.size
    wide -= first
    correction = float(np.add.reduce(wide)) / wide.size
    variance = float(np.dot(wide, wide)) / wide.size - correction * correction
    mean = _ldexp(first + correction, scale)
    return Moments(wide.size, max(-top, min(mean, top)), min(_ldexp(math.sqrt(max(variance, 0.0)), scale), top))


def _ldexp(value: float, exponent: int) -> float:
    # Two steps: 2**1024, by itself, is no float.
    return value * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
