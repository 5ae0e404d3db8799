"""The statistics of one piece of a tensor by NumPy, and how those of two pieces add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from torchsan.tensors.elements import Array, Format


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What TensorSummary says, of a piece. `moments` has one a part: two for complex, none if nothing is finite."""

    low: int | float | None = None
    high: int | float | None = None
    moments: tuple[Moments, ...] = ()
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    subnormals: int = 0

    def __add__(self, other: Tally) -> Tally:
        pairs = zip(self.moments, other.moments, strict=False)
        return Tally(
            low=_pick(min, self.low, other.low),
            high=_pick(max, self.high, other.high),
            moments=tuple(a + b for a, b in pairs) or self.moments or other.moments,
            nan=self.nan + other.nan,
            posinf=self.posinf + other.posinf,
            neginf=self.neginf + other.neginf,
            zeros=self.zeros + other.zeros,
            subnormals=self.subnormals + other.subnormals,
        )


def _pick(
    choose: Callable[[int | float, int | float], int | float], a: int | float | None, b: int | float | None
) -> int | float | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


def tally(numbers: Array, form: Format) -> Tally:
    """Return the statistics of `numbers`, which `form` read; there is at least one."""
    match form.family:
        case "bool" | "integer":
            low = int(numbers.min())
            zeros = numbers.size - int(np.count_nonzero(numbers))
            return Tally(low=low, high=int(numbers.max()), moments=(of_integers(numbers, low),), zeros=zeros)
        case "float":
            return _floats(numbers, form.smallest_normal)
        case "complex":
            return _complexes(numbers, form.smallest_normal)


@dataclass(frozen=True, slots=True)
class _Bits:
    """The magnitudes of IEEE floats as integers, which order as the floats do. Immune to flush-to-zero modes."""

    magnitude: Array
    negative: Array
    infinity: int
    tiny: int

    @classmethod
    def of(cls, x: Array, smallest_normal: float) -> _Bits:
        unsigned = f"u{x.itemsize}"
        bits = x.view(unsigned)
        sign = bits.dtype.type(1 << (8 * x.itemsize - 1))
        infinity, tiny = (int(np.array(v, x.dtype).view(unsigned)) for v in (np.inf, smallest_normal))
        return cls(bits & ~sign, (bits & sign).astype(np.bool_), infinity, tiny)

    @property
    def finite(self) -> Array:
        return np.less(self.magnitude, self.infinity)

    @property
    def subnormal(self) -> Array:
        tiny: Array = (self.magnitude < self.tiny) & (self.magnitude != 0)
        return tiny


def _floats(x: Array, smallest_normal: float) -> Tally:
    low, high, least, most = _extremes(x)
    if not np.isfinite(most):
        bits = _Bits.of(x, smallest_normal)
        infinite = bits.magnitude == bits.infinity
        neginf = int(np.count_nonzero(infinite & bits.negative))
        finite = x[bits.finite]
        rest = _floats(finite, smallest_normal) if finite.size else Tally()
        posinf = int(np.count_nonzero(infinite)) - neginf
        nan = x.size - finite.size - posinf - neginf
        return rest + Tally(nan=nan, posinf=posinf, neginf=neginf)
    zeros = subnormals = 0
    if least < smallest_normal:
        bits = _Bits.of(x, smallest_normal)
        zeros = x.size - int(np.count_nonzero(bits.magnitude))
        subnormals = int(np.count_nonzero(bits.magnitude < bits.tiny)) - zeros
    return Tally(low=low, high=high, moments=(of_floats(x, most),), zeros=zeros, subnormals=subnormals)


def _extremes(x: Array) -> tuple[float, float, float, float]:
    """Return minimum, maximum, least and greatest magnitude of `x`; the first two only count if the last is finite.

    Four reductions over the bits as integers tell all four, with neither a copy nor a look at zeros by themselves: as
    unsigned integers the floats order 0 … inf, −0 … −inf; as signed ones −0 … −inf, 0 … inf.
    """
    signed, unsigned = x.view(f"i{x.itemsize}"), x.view(f"u{x.itemsize}")
    # As arrays of one, since a float scalar of NumPy may pass through a register that quiets NaN.
    ends = np.array([np.maximum.reduce(unsigned), np.minimum.reduce(unsigned)]).view(x.dtype)
    signed_ends = np.array([np.maximum.reduce(signed), np.minimum.reduce(signed)]).view(x.dtype)
    (last, first), (top, bottom) = ends.tolist(), signed_ends.tolist()
    low = last if np.signbit(ends[0]) else first
    high = bottom if np.signbit(signed_ends[0]) else top
    # `max` would keep or drop a NaN by its position.
    most = float(np.maximum(abs(last), abs(top)))
    return low, high, min(abs(first), abs(bottom)), most


def _complexes(x: Array, smallest_normal: float) -> Tally:
    """Return the statistics of complex elements: one with a NaN part is NaN, else one with an infinite part infinite.

    Infinities have no sign here; all count as `posinf`. An element with a subnormal part counts as subnormal.
    """
    bits = _Bits.of(x, smallest_normal)
    nan = (bits.magnitude > bits.infinity).reshape(-1, 2).any(axis=1)
    finite = bits.finite.reshape(-1, 2).all(axis=1)
    counts = Tally(
        nan=int(np.count_nonzero(nan)),
        posinf=int(np.count_nonzero(~finite & ~nan)),
        zeros=int(np.count_nonzero((bits.magnitude == 0).reshape(-1, 2).all(axis=1))),
        subnormals=int(np.count_nonzero(bits.subnormal.reshape(-1, 2).any(axis=1) & finite)),
    )
    parts = x.reshape(-1, 2)[finite]
    if not len(parts):
        return counts
    magnitude = np.hypot(parts[:, 0].astype(np.float64), parts[:, 1].astype(np.float64))
    columns = [np.ascontiguousarray(parts[:, i]) for i in (0, 1)]
    moments = tuple(of_floats(column, _extremes(column)[3]) for column in columns)
    return counts + Tally(low=float(magnitude.min()), high=float(magnitude.max()), moments=moments)
