"""Judges pairs of values: the same, apart by rounding, apart because their inputs are, or different."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchsan.diff.result import How, Judged, Role
from torchsan.diff.values import Call, Contents, Value
from torchsan.graphs.printed import FxGraph
from torchsan.records import Comparison, TensorSummary, Watched

if TYPE_CHECKING:
    import torch

    from torchsan.diff.align import GraphPair
    from torchsan.diff.replaying import Explained, RunnableGraph

_GROWTH = 32.0
"""How much larger than the differences it is computed from a difference may be, relative to the values."""
_SINGLE, _HALF = 64.0, 8.0
"""How many units in the last place rounding alone may give, in the root mean square: in single precision and wider,
and in half precision and narrower, where programs take care to round seldom."""
_MOST = 0.1
"""Values that differ by more than that have little in common, whatever came before."""
_FEW = 0.02
"""The share of integers or truth values that ties and thresholds explain, where what came before is rounded."""
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_EPS |= {"complex128": 2.0**-52, "complex64": 2.0**-23, "complex32": 2.0**-10}
_EPS |= {"float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2}
_NOISE = 0.01
"""From here on a difference that is rounding is one of values that are nothing but rounding: zero gradients, say."""


def metadata_text(a: Watched, b: Watched) -> str | None:
    """Return why two values cannot be compared element by element, or None if they can. Unequal numbers cannot."""
    if a.summary is None or b.summary is None:
        if a.summary is None and b.summary is None:
            return None if a.value == b.value else f"{a.value} against {b.value}"
        return "a tensor against a number"
    mine, other = a.summary.meta, b.summary.meta
    for what in ("dtype", "shape", "layout", "kind"):
        x, y = getattr(mine, what), getattr(other, what)
        if x != y:
            return f"{what} {_shown(x)} against {_shown(y)}"
    return None


def _shown(value: object) -> str:
    return "×".join(map(str, value)) or "scalar" if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one pair. `judged` is None where nothing can be said, and `text` says why.

    `blamed` are nodes of the first graph that the second computes otherwise.
    """

    judged: Judged | None
    how: How
    comparison: Comparison | None = None
    spread: float | None = None
    text: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()

    @property
    def parted(self) -> bool:
        """Whether the values differ by more than rounding, so that what is computed from them may, too."""
        return self.judged in (Judged.DIFFERENT, Judged.FOLLOWS)


class Judging:
    """Judges one call after another, in the order in which they happened. `seconds` bound the replays in all."""

    def __init__(self, a: Contents, b: Contents, *, seconds: float) -> None:
        self._a = a
        self._b = b
        self._left = seconds
        self._earlier: dict[tuple[str, str], Result] = {}
        self._largest = 0.0
        self._parted = False
        self._computed_parted = False
        self._noise = False
        self._runnable: dict[int, RunnableGraph] = {}
        self.out_of_time = 0
        """How many values were judged by proportion because the time for replays was over."""

    def judge(self, call: Call) -> Iterator[tuple[Value, Value, Result]]:
        """Yield every pair of a call with what came of it."""
        here: dict[str, Result] = {}
        for a, b in call.pairs:
            result = self._judge(call, a, b, here)
            if a.node is not None and result.judged is not None:
                here.setdefault(a.node, result)
            if a.watched.stored is not None and b.watched.stored is not None:
                self._earlier.setdefault((a.watched.stored, b.watched.stored), result)
            self._note(result, a.role)
            yield a, b, result

    def _note(self, result: Result, role: Role) -> None:
        """Remember how large differences are so far, for values whose graph is not known."""
        self._parted |= result.parted
        self._computed_parted |= result.parted and role is not Role.INPUT
        if result.judged is Judged.ROUNDING and result.spread is not None:
            noisy = result.spread >= _NOISE
            relative = result.comparison.max_rel if result.comparison is not None else None
            self._noise |= noisy or (relative is not None and relative >= _NOISE)
            self._largest = max(self._largest, 0.0 if noisy else result.spread)

    def _judge(self, call: Call, a: Value, b: Value, here: Mapping[str, Result]) -> Result:
        mine, other = a.watched.summary, b.watched.summary
        hard = metadata_text(a.watched, b.watched)
        before = self._before(call, a, here)
        if hard is not None:
            judged = Judged.FOLLOWS if before.parted else Judged.DIFFERENT
            return Result(judged=judged, how=How.METADATA, text=(hard,))
        if mine is None or other is None:
            return Result(judged=Judged.SAME, how=How.ELEMENTS)  # Numbers, and equal.
        address = self._a.address(a.watched)
        if address is not None and address == self._b.address(b.watched):
            return Result(judged=Judged.SAME, how=How.CONTENTS, spread=0.0)
        known = self._earlier.get((a.watched.stored or "", b.watched.stored or ""))
        if known is not None and known.judged is not None:
            return _again(known)
        x, y = self._a.tensor(a.watched), self._b.tensor(b.watched)
        if x is None or y is None:
            return self._by_summaries(mine, other, before)
        return self._by_elements(call, a, x, y, before)

    def _by_summaries(self, mine: TensorSummary, other: TensorSummary, before: _Before) -> Result:
        reason = mine.reason or other.reason
        if reason is not None:
            return Result(judged=None, how=How.SUMMARIES, text=(reason,))
        apart = _summary_spread(mine, other)
        return self._in_proportion(mine.meta.dtype, apart, before, how=How.SUMMARIES)

    def _by_elements(self, call: Call, a: Value, x: torch.Tensor, y: torch.Tensor, before: _Before) -> Result:
        from torchsan.reference.judge import agrees
        from torchsan.tensors import compare

        comparison = compare(y, x)
        if comparison.reason is not None:
            return Result(judged=None, how=How.ELEMENTS, text=(comparison.reason,))
        if comparison:
            return Result(judged=Judged.SAME, how=How.ELEMENTS, spread=0.0)
        apart = _spread(x, y)
        if agrees(y, x):
            return Result(judged=Judged.ROUNDING, how=How.ELEMENTS, comparison=comparison, spread=apart)
        explained = self._explained(call, a, x, y)
        if explained is not None and call.graphs is not None:
            result = _from_replay(call.graphs, x, y, explained, before)
        else:
            result = self._in_proportion(str(x.dtype).removeprefix("torch."), apart, before, how=How.PROPORTION)
        return replace(result, comparison=comparison, spread=apart)

    def _in_proportion(self, dtype: str, apart: float, before: _Before, *, how: How) -> Result:
        text: tuple[str, ...] = ()
        limit = _allowed(dtype, before.spread)
        if apart == 0:
            judged = Judged.SAME
        elif before.parted:
            judged = Judged.FOLLOWS
        elif apart <= limit:
            judged = Judged.ROUNDING
        elif limit == 0 and before.spread > 0 and how is How.PROPORTION and apart <= _FEW:
            judged = Judged.UNDECIDED
            text = ("a few whole numbers or truth values: ties and thresholds of values that differ by rounding",)
        elif before.outside and self._noise:
            judged = Judged.UNDECIDED
            text = ("made outside of compiled code, where noise in a gradient can become a step as long as any",)
        else:
            judged = Judged.DIFFERENT
            beside = f"in what came before it {before.spread:.2g}" if before.spread else "before it nothing differs"
            text = (f"the difference is {apart:.2g} of the values; {beside}",)
        return Result(judged=judged, how=how, spread=apart, text=text)

    def _before(self, call: Call, a: Value, here: Mapping[str, Result]) -> _Before:
        """What the value is computed from: its nearest ancestors that were compared; without a graph, all so far."""
        fx = _computed_by(call, a)
        if fx is None:
            # An input that differs does not follow from another one: the runs were given other data.
            outside = a.role is Role.INPUT
            parted = self._computed_parted if outside else self._parted
            return _Before(parted=parted, spread=self._largest, outside=outside)
        found = [here[n] for n in _ancestors(fx, a.node or "", here)]
        return _Before(
            parted=any(r.parted for r in found), spread=max((r.spread or 0.0 for r in found), default=self._largest)
        )

    def _explained(self, call: Call, a: Value, x: torch.Tensor, y: torch.Tensor) -> Explained | None:
        """Return what a replay of the operators says of both values; None if it cannot be run."""
        fx = _computed_by(call, a)
        if fx is None or a.node is None:
            return None
        if self._left <= 0:
            self.out_of_time += 1
            return None
        from torchsan.diff.replaying import RunnableGraph
        from torchsan.reference.arithmetic import Unavailable

        started = time.monotonic()
        try:
            if id(fx) not in self._runnable:
                self._runnable[id(fx)] = RunnableGraph(fx)
            return self._runnable[id(fx)].explain(a.node, x, y, partial(self._known, call, fx, a.node))
        except Unavailable:
            return None
        finally:
            self._left -= time.monotonic() - started

    def _known(self, call: Call, fx: FxGraph, but: str, name: str) -> tuple[Any, Any] | None:
        """The values that a node had in either run, if both were saved."""
        if name == but or name in fx.inner or name not in call.known:
            return None
        a, b = call.known[name]
        if not fits(fx.by_name[name].kind, a):
            return None
        values: tuple[Any, Any] = (a.watched.value, b.watched.value)
        if a.watched.summary is not None and b.watched.summary is not None:
            values = (self._a.tensor(a.watched), self._b.tensor(b.watched))
        return None if any(v is None for v in values) else values


def _computed_by(call: Call, value: Value) -> FxGraph | None:
    """The graph that computes the value, if its text tells how."""
    fx = call.graphs.a.fx if call.graphs is not None else None
    if fx is None or not fx.complete or value.role is Role.INPUT or value.node in fx.inner:
        return None
    return fx if value.node in fx.by_name else None


@dataclass(frozen=True, slots=True)
class _Before:
    """What came before a value. `outside` tells that it was not computed by the graph that it was seen in."""

    parted: bool
    spread: float
    outside: bool = False


def fits(kind: str, value: Value) -> bool:
    """Whether a value has the shape that the graph gives its node, as far as that is written in numbers."""
    summary = value.watched.summary
    inside = kind.partition("[")[2].rpartition("]")[0]
    sizes = [s.strip() for s in inside.split(",")] if inside else []
    if summary is None or "[" not in kind:
        return True
    shape = summary.meta.shape
    return len(sizes) == len(shape) and all(not s.isdecimal() or int(s) == n for s, n in zip(sizes, shape, strict=True))


def _again(known: Result) -> Result:
    """Return the result of the same two tensors in an earlier place; a difference is reported only there."""
    judged = Judged.FOLLOWS if known.judged is Judged.DIFFERENT else known.judged
    return replace(known, judged=judged, text=(), blamed=())


def _ancestors(fx: FxGraph, node: str, here: Mapping[str, Result]) -> set[str]:
    found: set[str] = set()
    seen: set[str] = set()
    stack = list(fx.by_name[node].parents)
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in here:
            found.add(name)
        else:
            stack += fx.by_name[name].parents
    return found


def _from_replay(graphs: GraphPair, x: torch.Tensor, y: torch.Tensor, explained: Explained, before: _Before) -> Result:
    from torchsan.diff.replaying import differing_text
    from torchsan.reference.judge import Outcome

    outcomes = set(explained.outcomes)
    if outcomes == {Outcome.RIGHT}:
        return Result(judged=Judged.FOLLOWS if before.parted else Judged.ROUNDING, how=How.REPLAY)
    rewritten = graphs.rewritten(explained.inside)
    undecided = outcomes == {Outcome.RIGHT, Outcome.UNDECIDED} and not rewritten
    return Result(
        judged=Judged.UNDECIDED if undecided else Judged.DIFFERENT,
        how=How.REPLAY,
        text=differing_text(graphs, x, y, explained, rewritten),
        blamed=rewritten,
    )


def _allowed(dtype: str, before: float) -> float:
    """How large a spread may be that came from values with a spread of `before`; 0 for what is not rounded at all."""
    eps = _EPS.get(dtype)
    if eps is None:
        return 0.0
    return min(_MOST, eps * (_SINGLE if eps < 1e-5 else _HALF) + _GROWTH * before)


def _spread(a: torch.Tensor, b: torch.Tensor) -> float:
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


def _summary_spread(a: TensorSummary, b: TensorSummary) -> float:
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
