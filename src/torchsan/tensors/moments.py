"""Mean and standard deviation of many numbers, from those of their parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from torchsan.tensors.elements import Array

__all__ = ["Moments", "of_floats", "of_integers"]


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


def of_integers(x: Array, low: int) -> Moments:
    """Return the moments of the integers `x`, none below `low`; the mean is exact."""
    # In unsigned arithmetic the difference to the minimum is exact whatever the dtype.
    above = x.view(f"u{x.itemsize}") - np.array(low).astype(x.dtype).view(f"u{x.itemsize}")
    if x.itemsize == 8:
        total = (int((above >> np.uint64(32)).sum()) << 32) + int((above & np.uint64(0xFFFFFFFF)).sum())
    else:
        total = int(above.sum(dtype=np.uint64))
    spread = above.astype(np.float64)
    return Moments(x.size, low + Fraction(total, x.size), of_floats(spread, float(spread.max())).std)


def of_floats(x: Array, top: float) -> Moments:
    """Return the moments of the finite floats `x`, none above `top` in magnitude; there is at least one.

    By float64, from the differences to a first mean, scaled where squares leave the range.
    """
    scale = 0 if top == 0 or 2.0**-400 <= top <= 2.0**480 else math.frexp(top)[1]
    wide = x.astype(np.float64)
    if scale:
        wide = np.ldexp(wide, -scale)
    first = float(np.add.reduce(wide)) / wide.size
    wide -= first
    correction = float(np.add.reduce(wide)) / wide.size
    # Not `dot`: BLAS would bring threads of its own, and sum less carefully.
    wide *= wide
    variance = float(np.add.reduce(wide)) / wide.size - correction * correction
    mean = _ldexp(first + correction, scale)
    return Moments(wide.size, max(-top, min(mean, top)), min(_ldexp(math.sqrt(max(variance, 0.0)), scale), top))


def _ldexp(value: float, exponent: int) -> float:
    # Two steps: 2**1024, by itself, is no float.
    return value * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
