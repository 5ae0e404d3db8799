"""What is known of a tensor without holding it."""

from __future__ import annotations

from dataclasses import dataclass

Scalar = bool | int | float | complex


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMeta:
    """The metadata of one tensor. `shape`, `stride` and `offset` count elements, not bytes.

    `stride` is empty and `offset` 0 for layouts that have none (sparse, nested, opaque). A symbolic size is None.
    `kind` tells ordinary tensors from others: `dense`, `meta`, `fake`, `sparse`, `quantized`, `nested`, `opaque` (the
    layout of another library, such as oneDNN).
    """

    dtype: str
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...] = ()
    offset: int | None = 0
    device: str = "cpu"
    layout: str = "strided"
    requires_grad: bool = False
    conj: bool = False
    neg: bool = False
    kind: str = "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSummary:
    """The statistics of one tensor's elements.

    `minimum`, `maximum`, `mean` and `std` (of the population) are over the finite elements; None when no element is
    finite or there is no data. Of integers and bools `minimum` and `maximum` are exact ints, and `mean` is the float
    nearest to the exact mean. Zeros of either sign count as `zeros`, which are not `subnormals`.

    For complex tensors `minimum` and `maximum` are of the magnitude, and `mean` is complex. A complex element with a
    NaN part counts as NaN, else one with an infinite part as `posinf`; a finite one with a subnormal part as subnormal.

    `values` holds all elements, in row-major order, when there are at most 64. `reason` says why there is metadata
    only: no elements (meta, fake), or elements that are not read (sparse, quantized, nested, opaque, packed and
    sub-byte dtypes); `count` is 0 then if the shape is not fully known.
    """

    meta: TensorMeta
    count: int
    minimum: int | float | None = None
    maximum: int | float | None = None
    mean: float | complex | None = None
    std: float | None = None
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    subnormals: int = 0
    values: tuple[Scalar, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How `actual` differs from `expected`; truthy when they are equal (NaN equals NaN, −0 equals 0).

    The errors are over elements that are finite on both sides, None if there are none. `max_abs` is an int for integers
    and bools. `max_rel` is relative to `expected`: inf where that is zero and `actual` is not. `max_ulps` counts the
    steps between representable numbers of the dtype from one to the other; None where the dtype has no ULP (integers,
    bool). Complex elements are equal when both parts are; their absolute error is the magnitude of the difference,
    their error in ULPs the larger one of the parts.

    `first_bad` is the first index, in row-major order, of elements that differ. `reason` is set, and nothing else but
    `count` (of `actual`), when metadata make the elements incomparable (other shape or dtype, no data).
    """

    count: int
    mismatches: int = 0
    max_abs: int | float | None = None
    max_rel: float | None = None
    max_ulps: int | None = None
    first_bad: tuple[int, ...] | None = None
    actual_at: Scalar | None = None
    expected_at: Scalar | None = None
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is None and self.mismatches == 0
