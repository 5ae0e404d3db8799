"""Whether tensors are the same: by a fingerprint, and element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import xxhash

from torchsan.errors import UsageError
from torchsan.records.tensor import Comparison, Scalar
from torchsan.tensors.describe import describe, undisturbed
from torchsan.tensors.elements import Array, Bytes, Format, elements, format_of, unreadable


@undisturbed
def compare(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    """Return how `actual` differs from `expected`: truthy when equal, with a `reason` when they cannot be compared.

    Strides and devices may differ. Like `summarize` it runs no operator on CPU tensors, and its memory is bounded.

    >>> import torch, torchsan
    >>> difference = torchsan.compare(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
    >>> bool(difference), difference.max_abs, difference.first_bad
    (False, 0.5, (1,))
    """
    here, there = describe(actual), describe(expected)
    count = math.prod(n for n in here.shape if n is not None) if None not in here.shape else 0
    form = format_of(actual.dtype)
    reason = _incomparable(actual, expected)
    if reason is None and here.dtype != there.dtype:
        reason = f"dtype {here.dtype}, expected {there.dtype}"
    if reason is None and form is None:
        reason = f"elements of {here.dtype} are not read as numbers"
    if reason is not None or form is None:
        return Comparison(count=count, reason=reason)
    return _compare(actual, expected, form)


def _incomparable(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    for side, t in (("actual", actual), ("expected", expected)):
        reason = unreadable(t)
        if reason is not None:
            return f"{side}: {reason}"
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    return None


@dataclass(slots=True)
class _Errors:
    """The largest errors so far; None until an element was finite on both sides."""

    absolute: int | float | None = None
    relative: float | None = None
    ulps: int | None = None

    def include(self, absolute: int | float, relative: float, ulps: int | None) -> None:
        self.absolute = absolute if self.absolute is None else max(self.absolute, absolute)
        self.relative = relative if self.relative is None else max(self.relative, relative)
        if ulps is not None:
            self.ulps = ulps if self.ulps is None else max(self.ulps, ulps)


def _compare(actual: torch.Tensor, expected: torch.Tensor, form: Format) -> Comparison:
    errors = _Errors()
    mismatches = done = 0
    first: int | None = None
    at: tuple[Scalar | None, Scalar | None] = (None, None)
    for a, b in elements(actual, expected):
        x, y = form.numbers(a), form.numbers(b)
        # Equal bytes are equal elements; they add no error to one that is known.
        if errors.absolute is None or not np.array_equal(a, b):
            with np.errstate(all="ignore"):
                bad = _differing(x, y, form)
                _measure(errors, x, y, a, b, form)
            wrong = int(np.count_nonzero(bad))
            if wrong and first is None:
                i = int(bad.argmax())
                first, at = done + i, (_scalar(form, x, i), _scalar(form, y, i))
            mismatches += wrong
        done += x.size // form.parts
    return Comparison(
        count=done,
        mismatches=mismatches,
        max_abs=errors.absolute,
        max_rel=errors.relative,
        max_ulps=errors.ulps,
        first_bad=None if first is None else tuple(int(i) for i in np.unravel_index(first, tuple(actual.shape))),
        actual_at=at[0],
        expected_at=at[1],
    )


def _scalar(form: Format, numbers: Array, i: int) -> Scalar:
    return form.scalars(numbers[i * form.parts : (i + 1) * form.parts])[0]


def _differing(x: Array, y: Array, form: Format) -> Array:
    """Return, an element each, whether the two differ; NaN does not differ from NaN."""
    bad: Array = x != y
    if form.family in ("float", "complex"):
        bad &= ~(np.isnan(x) & np.isnan(y))
    return _any(bad, form)


def _any(flags: Array, form: Format) -> Array:
    """Return, an element each, whether a flag of one of its parts is set."""
    return flags if form.parts == 1 else flags[::2] | flags[1::2]


def _measure(errors: _Errors, x: Array, y: Array, a: Bytes, b: Bytes, form: Format) -> None:
    """Add the errors of the elements `x` against `y`, read from the bytes `a` and `b`, to `errors`."""
    if form.family in ("bool", "integer"):
        # Unsigned arithmetic wraps to the exact difference, even between the ends of int64.
        unsigned = f"u{x.itemsize}"
        apart = np.maximum(x, y).view(unsigned) - np.minimum(x, y).view(unsigned)
        errors.include(int(apart.max()), _relative(apart.astype(np.float64), np.abs(y.astype(np.float64))), None)
        return
    finite = ~_any(~(np.isfinite(x) & np.isfinite(y)), form)
    if not finite.any():
        return
    wide, reference = (v.reshape(-1, form.parts)[finite].astype(np.float64) for v in (x, y))
    difference, magnitude = wide - reference, np.abs(reference)
    distance = np.abs(difference) if form.parts == 1 else np.hypot(difference[:, :1], difference[:, 1:])
    if form.parts == 2:
        magnitude = np.hypot(magnitude[:, :1], magnitude[:, 1:])
    relative = _relative(distance, magnitude)
    if math.isinf(float(distance.max())):
        # Near the end of the range the difference overflows where the quotient need not.
        halves = np.abs(wide / 2 - reference / 2)
        halved = halves if form.parts == 1 else np.hypot(halves[:, :1], halves[:, 1:])
        relative = _relative(
            np.where(np.isinf(distance), halved, distance), np.where(np.isinf(distance), magnitude / 2, magnitude)
        )
    errors.include(float(distance.max()), relative, _ulps(a, b, finite, form))


def _relative(distance: Array, magnitude: Array) -> float:
    """Return the largest `distance` for its `magnitude`; no distance from zero is 0, any other infinite."""
    return float(np.where(distance == 0, 0.0, distance / magnitude).max())


def _ulps(a: Bytes, b: Bytes, finite: Array, form: Format) -> int:
    """Return the most steps between representable numbers from an element of `a` to that of `b`."""
    mine, other = (form.ranks(v).reshape(-1, form.parts)[finite] for v in (a, b))
    apart = np.maximum(mine, other).view(np.uint64) - np.minimum(mine, other).view(np.uint64)
    return int(apart.max())


@undisturbed
def digest(t: torch.Tensor) -> str:
    """Return a hash of dtype, shape and elements of `t`, as 32 hex digits; strides, offset and device do not matter.

    Elements count as bits: NaNs with other payloads differ, and so do 0.0 and -0.0. The hash (XXH3) is for detecting
    change. It is not an address: it does not withstand someone who looks for collisions, so the store uses BLAKE3.

    Raise UsageError where the elements cannot be read.

    >>> import torch, torchsan
    >>> torchsan.digest(torch.zeros(2, 3)) == torchsan.digest(torch.zeros(3, 2).t())
    True
    """
    reason = unreadable(t)
    if reason is not None:
        raise UsageError(f"no digest of this {t.dtype} tensor: {reason}; digest its parts", slug="tensor-unreadable")
    state = xxhash.xxh3_128(f"{t.dtype} {tuple(t.shape)}\0".encode())
    for (piece,) in elements(t):
        state.update(piece.data)
    return state.hexdigest()
