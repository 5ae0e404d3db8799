"""What `--watch` saw: one record for each value at each launch, and how it reads as a line of text."""

from __future__ import annotations

from dataclasses import dataclass

from torchsan.records.program import Direction, GraphId
from torchsan.records.tensor import Scalar, TensorSummary

__all__ = ["Watched", "describe_value", "launch_label", "value_key"]


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
