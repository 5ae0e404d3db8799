"""How large the difference of two tensors is, and whether that is in proportion to what came before it.

The fallback where nothing can be run again: a difference that grows much faster than rounding errors do on their way
through a program is none of them. It cannot see cancellation, so it says `undecided` less and `different` more often
than a replay.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchsan.records import TensorSummary

if TYPE_CHECKING:
    import torch

__all__ = ["allowed", "differs_by_few", "spread", "summary_spread"]

_GROWTH = 32.0
"""How much larger than the differences it is computed from a difference may be, relative to the values."""
_SINGLE, _HALF = 64.0, 8.0
"""How many units in the last place rounding alone may give, in the root mean square: in single precision and wider,
and in half precision and narrower, where programs take care to round seldom."""
_MOST = 0.1
"""Values that differ by more than that have little in common, whatever came before."""
_FEW = 0.02
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_EPS |= {"complex128": 2.0**-52, "complex64": 2.0**-23, "complex32": 2.0**-10}
_EPS |= {"float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2}


def allowed(dtype: str, before: float) -> float:
    """How large a spread may be that came from values with a spread of `before`; 0 for what is not rounded at all."""
    eps = _EPS.get(dtype)
    if eps is None:
        return 0.0
    return min(_MOST, eps * (_SINGLE if eps < 1e-5 else _HALF) + _GROWTH * before)


def spread(a: torch.Tensor, b: torch.Tensor) -> float:
    """The root mean square of the difference relative to that of the values; infinite where one is no number.

    Of integers and truth values: how many of them differ, between 0 and 1.
    """
    import torch

    if a.numel() == 0:
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).to(torch.float64).mean())
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    finite = torch.isfinite(x) & torch.isfinite(y)
    alike = finite | (x == y) | (torch.isnan(x) & torch.isnan(y))
    if not bool(alike.all()):
        return math.inf
    x, y = x[finite], y[finite]
    size = float(torch.maximum(x.abs(), y.abs()).square().mean().sqrt()) if x.numel() else 0.0
    return float((x - y).abs().square().mean().sqrt()) / size if size else 0.0


def summary_spread(a: TensorSummary, b: TensorSummary) -> float:
    """The largest difference of the statistics, relative to the root mean square of the values."""
    if (a.nan, a.posinf, a.neginf, a.count) != (b.nan, b.posinf, b.neginf, b.count):
        return math.inf
    statistics = [(a.minimum, b.minimum), (a.maximum, b.maximum), (a.mean, b.mean), (a.std, b.std)]
    size = max(_size(a), _size(b))
    apart = 0.0
    for x, y in statistics:
        if (x is None) != (y is None):
            return math.inf
        if x is not None and y is not None:
            apart = max(apart, float(abs(x - y)))
    return apart / size if size else (math.inf if apart else 0.0)


def _size(s: TensorSummary) -> float:
    return math.hypot(abs(s.mean or 0.0), s.std or 0.0)


def differs_by_few(share: float) -> bool:
    """Whether so few integers or truth values differ that ties and thresholds explain it."""
    return share <= _FEW
