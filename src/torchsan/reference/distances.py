"""How far apart numbers are, as their dtype tells them apart."""

from __future__ import annotations

import torch

NEAR_ULPS = 4.0
"""Units in the last place by which two results may differ before anything else is asked."""

_WHOLE = 128.0
"""Up to here even bfloat16 has all whole numbers, and the halves between them."""


def near(actual: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Where the two are the same, or differ by a few units in the last place."""
    equal = same(actual, eager)
    if not has_ulp(actual.dtype) or bool(equal.all()):
        return equal
    info = torch.finfo(actual.dtype)
    ulps = 1.5 if is_half(actual.dtype) else NEAR_ULPS
    a, e = comparable(actual), comparable(eager)
    distance = (a - e).abs()
    return (torch.isfinite(distance) & (distance <= e.abs() * (ulps * info.eps) + info.tiny)) | equal


def away(other: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """How far each number is from another one; zero where either is none."""
    distance = (other - centre).abs()
    return torch.where(torch.isfinite(other) & torch.isfinite(centre), distance, torch.zeros_like(distance))


def scale(centre: torch.Tensor) -> float:
    """What is tiny beside the rest of its tensor is measured by the rest; where most is zero, by the largest."""
    magnitudes = centre.abs()[torch.isfinite(centre)]
    return (float(magnitudes.median()) or float(magnitudes.max()) or 1.0) if magnitudes.numel() else 0.0


def is_half(dtype: torch.dtype) -> bool:
    """Whether a floating-point type is float16, bfloat16 or narrower."""
    return torch.finfo(dtype).eps > 1e-4


def has_ulp(dtype: torch.dtype) -> bool:
    """Whether numbers of this type are rounded."""
    return dtype.is_floating_point or dtype.is_complex


def comparable(t: torch.Tensor) -> torch.Tensor:
    """In a type that arithmetic is implemented for."""
    if t.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        return t
    return t.to(torch.complex64 if t.is_complex() else torch.float32)


def as_double(t: torch.Tensor) -> torch.Tensor:
    """In float64 or complex128."""
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Equal, or both NaN."""
    if not has_ulp(a.dtype):
        return a == b
    a, b = comparable(a), comparable(b)
    return (a == b) | (torch.isnan(a) & torch.isnan(b))


def are_counts(a: torch.Tensor, e: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether these are small whole numbers, such as `floor` gives, of which eager's are those of float64.

    Every arithmetic has them exactly, so that rounding does not move them: it would have to decide something otherwise
    than eager and float64 do.
    """
    if c.is_complex():
        return False
    whole = all(bool(((t == t.round()) & (t.abs() <= _WHOLE)).all()) for t in (a, c))
    return whole and bool((e == c).all())


def doubt(dtype: torch.dtype) -> float:
    """How many widths outside is beyond doubt.

    Half precision is computed in float32 and rounded, by eager after each operator, by a kernel at the end: there is
    little that the width does not know. In float32 libraries have algorithms of their own.
    """
    return 1.25 if is_half(dtype) else 4.0


def as_near_as_eager(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result lies about as near to float64's as eager's does, taken as a whole.

    Enough where the graphs are known to be right, and far cheaper than finding out what rounding can do.
    """
    if not actual.is_floating_point() or actual.shape != exact.shape:
        return False
    if actual.numel() == 0:
        return True
    c = exact.to(torch.float64)
    own, other = float((actual - c).abs().max()), float((eager - c).abs().max())
    # Not a number compares as false, and so is never near.
    return own <= 8 * other + 16 * torch.finfo(actual.dtype).eps * float(c.abs().max())


def relative_error(eager: torch.Tensor, exact: torch.Tensor) -> float:
    """How far eager's result lies from float64's at most, as a part of the largest element; 0 for whole numbers."""
    if not eager.is_floating_point() or eager.numel() == 0:
        return 0.0
    c = exact.to(torch.float64)
    return float((eager - c).abs().max()) / max(float(c.abs().max()), torch.finfo(eager.dtype).tiny)


def as_near_as_usual(actual: torch.Tensor, eager: torch.Tensor, error: float) -> bool:
    """What `as_near_as_eager` asks, by the relative error that eager's result had in an earlier call of the graph."""
    if actual.numel() == 0:
        return True
    if not actual.is_floating_point():
        return bool((actual == eager).all())
    allowed = 7 * error + 16 * torch.finfo(actual.dtype).eps
    # Not a number compares as false, and so is never near.
    return float((comparable(actual) - comparable(eager)).abs().max()) <= allowed * float(comparable(eager).abs().max())
