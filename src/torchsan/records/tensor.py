"""What is known of a tensor without holding it."""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.records.program import Direction, GraphId

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One value. `launch` counts the launches of one call from 0; None for graph inputs, outputs and probes.

    `site` is the launch's place in the program, the `nth` of its KernelRecord: in a loop it comes again. `node` is the
    FX node whose value the variable holds now. `call` counts the calls of one graph, or how often a probe was passed.

    `value` is set for a number, `summary` for a tensor, `stored` to the tensor's name in the recording's store if it
    was saved: the key of the first value with these contents, which is often this one.
    Neither: only that the launch happened is known (`--watch names`).
    """

    graph: GraphId | None
    direction: Direction | None
    call: int
    launch: int | None
    site: int | None = None
    kernel: str
    phase: str
    name: str = ""
    node: str | None = None
    value: Scalar | str | None = None
    summary: TensorSummary | None = None
    stored: str | None = None


def value_key(watched: Watched) -> str:
    """Graph, call, launch, kernel, phase and variable: no two values of a run share it."""
    where = "probes" if watched.graph is None else f"graph{watched.graph}-{watched.direction}"
    launch = "" if watched.launch is None else f"{watched.launch:04}-"
    return f"{where}/call{watched.call}/{launch}{watched.kernel}/{watched.phase}/{watched.name}"


def launch_label(watched: Watched) -> str:
    """Where and when, as `0 forward call 1 #3`."""
    if watched.graph is None:
        return f"probe #{watched.call}"
    nth = "" if watched.launch is None else f" #{watched.launch}"
    return f"{watched.graph} {watched.direction} call {watched.call}{nth}"


def describe_value(watched: Watched) -> str:
    """The value in one line: metadata and statistics of a tensor, and its elements when they are few."""
    if watched.summary is None:
        return "" if watched.value is None else str(watched.value)
    s = watched.summary
    meta = s.meta
    shape = "×".join("?" if n is None else str(n) for n in meta.shape) or "scalar"
    stride = f" stride {meta.stride}" if meta.stride and not _contiguous(meta.shape, meta.stride) else ""
    parts = [f"{meta.dtype}[{shape}]{stride} {meta.device}"]
    if s.minimum is not None:
        mean = s.mean or 0.0  # A mean of -0 says nothing.
        parts.append(f"min {_short(s.minimum)} max {_short(s.maximum)} mean {_short(mean)} std {_short(s.std)}")
    counts = {"NaN": s.nan, "+Inf": s.posinf, "-Inf": s.neginf, "zeros": s.zeros, "subnormal": s.subnormals}
    parts += [f"{name} {n}" for name, n in counts.items() if n]
    if s.reason:
        parts.append(f"({s.reason})")
    if s.values:
        parts.append("[" + ", ".join(_short(v) for v in s.values) + "]")
    return "  ".join(parts)


def _contiguous(shape: tuple[int | None, ...], stride: tuple[int | None, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=False):
        if size != 1 and step != expected:
            return False
        expected *= size or 1
    return True


def _short(value: Scalar | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, complex):
        return f"{value.real:.4g}{value.imag:+.4g}j"
    return str(value)


def in_bytes(n: int) -> str:
    """A number of bytes as people read it: `1.5 KiB` for 1536."""
    amount = float(n)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
