"""Judges pairs of values: the same, apart by rounding, apart because their inputs are, or different."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchsan.diff import replaying as proportion
from torchsan.diff.programs import node_text
from torchsan.diff.result import How, Judged, Role
from torchsan.diff.values import Call, Contents, Value
from torchsan.graphs.printed import FxGraph
from torchsan.records import Comparison, TensorSummary, Watched

if TYPE_CHECKING:
    import torch

    from torchsan.diff.align import GraphPair
    from torchsan.diff.replaying import Explained, RunnableGraph

_OPERATORS = 4


def metadata_text(a: Watched, b: Watched) -> str | None:
    """Why two values cannot be compared element by element, or None if they can; numbers differ or do not."""
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


def differing_text(
    graphs: GraphPair, x: torch.Tensor, y: torch.Tensor, explained: Explained, rewritten: tuple[str, ...]
) -> tuple[str, ...]:
    """Which of the two is not what the operators of the first graph give, at which element, and by how much."""
    from torchsan.reference.judge import Outcome

    lines = []
    if rewritten:
        lines.append("the two graphs compute it by other operators")
        lines += [line for name in rewritten[:_OPERATORS] for line in _both(graphs, name)]
    off = [name for name, outcome in zip("AB", explained.outcomes, strict=True) if outcome is not Outcome.RIGHT]
    verb = "is" if len(off) == 1 else "are"
    lines.append(f"{' and '.join(off)} {verb} not what A's operators give, rounding included")
    for name, judgement in (("A", explained.a), ("B", explained.b)):
        if judgement.bad is None or judgement.centre is None or judgement.width is None:
            continue
        bad = judgement.bad.nonzero()
        at = tuple(int(i) for i in bad[0])
        lines.append(
            f"{len(bad)} of {x.numel()} elements of {name}; at {list(at)}: A {_number(x[at])}, B {_number(y[at])}; "
            f"from {name}'s inputs float64 gives {_number(judgement.centre[at])}, and rounding explains "
            f"±{float(judgement.width[at]):.3g}"
        )
    return tuple(lines)


def _both(graphs: GraphPair, name: str) -> list[str]:
    """A node as either graph has it."""
    mine, other = graphs.a.fx.by_name[name], graphs.nodes.pairs.get(name)
    lines = [f"    A: {node_text(mine)}"]
    if other is not None and graphs.b.fx.by_name[other].written != mine.written:
        lines.append(f"    B: {node_text(graphs.b.fx.by_name[other])}")
    return lines


def _number(t: torch.Tensor) -> str:
    value = t.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)


_NOISE = 0.01
"""From here on a difference that is rounding is one of values that are nothing but rounding: zero gradients, say."""


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
        """Whether what is computed from it may be expected to differ."""
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
            self._note(result)
            yield a, b, result

    def _note(self, result: Result) -> None:
        """Remember what may explain a difference that no graph explains."""
        self._parted |= result.parted
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
            return self._by_summaries(a, mine, other, before)
        return self._by_elements(call, a, x, y, before)

    def _by_summaries(self, a: Value, mine: TensorSummary, other: TensorSummary, before: _Before) -> Result:
        reason = mine.reason or other.reason
        if reason is not None:
            return Result(judged=None, how=How.SUMMARIES, text=(reason,))
        apart = proportion.summary_spread(mine, other)
        return self._in_proportion(mine.meta.dtype, apart, before, how=How.SUMMARIES)

    def _by_elements(self, call: Call, a: Value, x: torch.Tensor, y: torch.Tensor, before: _Before) -> Result:
        from torchsan.reference.judge import agrees
        from torchsan.tensors import compare

        comparison = compare(y, x)
        if comparison.reason is not None:
            return Result(judged=None, how=How.ELEMENTS, text=(comparison.reason,))
        if comparison:
            return Result(judged=Judged.SAME, how=How.ELEMENTS, spread=0.0)
        apart = proportion.spread(x, y)
        if agrees(y, x):
            return Result(judged=Judged.ROUNDING, how=How.ELEMENTS, comparison=comparison, spread=apart)
        explained = self._explained(call, a, x, y)
        if explained is not None:
            return _from_replay(call, a, x, y, comparison, apart, explained, before)
        dtype = str(x.dtype).removeprefix("torch.")
        return self._in_proportion(dtype, apart, before, how=How.PROPORTION, comparison=comparison)

    def _in_proportion(
        self, dtype: str, apart: float, before: _Before, *, how: How, comparison: Comparison | None = None
    ) -> Result:
        text: tuple[str, ...] = ()
        limit = proportion.allowed(dtype, before.spread)
        if apart == 0:
            judged = Judged.SAME
        elif before.parted:
            judged = Judged.FOLLOWS
        elif apart <= limit:
            judged = Judged.ROUNDING
        elif limit == 0 and before.spread > 0 and how is How.PROPORTION and proportion.differs_by_few(apart):
            judged = Judged.UNDECIDED
            text = ("a few whole numbers or truth values: ties and thresholds of values that differ by rounding",)
        elif before.outside and self._noise:
            judged = Judged.UNDECIDED
            text = ("made outside of compiled code, where noise in a gradient can become a step as long as any",)
        else:
            judged = Judged.DIFFERENT
            beside = f"in what came before it {before.spread:.2g}" if before.spread else "before it nothing differs"
            text = (f"the difference is {apart:.2g} of the values; {beside}",)
        return Result(judged=judged, how=how, comparison=comparison, spread=apart, text=text)

    def _before(self, call: Call, a: Value, here: Mapping[str, Result]) -> _Before:
        """What the value is computed from: its nearest ancestors that were compared; without a graph, all so far."""
        fx = call.graphs.a.fx if call.graphs is not None else None
        if a.role is Role.INPUT or fx is None or not fx.complete or a.node not in fx.by_name or a.node in fx.inner:
            return _Before(parted=self._parted, spread=self._largest, outside=a.role is Role.INPUT)
        found = [here[n] for n in _ancestors(fx, a.node, here)]
        return _Before(
            parted=any(r.parted for r in found), spread=max((r.spread or 0.0 for r in found), default=self._largest)
        )

    def _explained(self, call: Call, a: Value, x: torch.Tensor, y: torch.Tensor) -> Explained | None:
        """What replaying says, or None where it cannot say anything."""
        fx = call.graphs.a.fx if call.graphs is not None else None
        if fx is None or not fx.complete or a.node is None or a.role is Role.INPUT or a.node in fx.inner:
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
            return self._runnable[id(fx)].explain(a.node, x, y, self._known(call, fx, a.node))
        except Unavailable:
            return None
        finally:
            self._left -= time.monotonic() - started

    def _known(self, call: Call, fx: FxGraph, but: str) -> dict[str, Callable[[], tuple[Any, Any] | None]]:
        def values(a: Value, b: Value) -> tuple[Any, Any] | None:
            if a.watched.summary is None or b.watched.summary is None:
                numbers = (a.watched.value, b.watched.value)
                return None if None in numbers else numbers
            x, y = self._a.tensor(a.watched), self._b.tensor(b.watched)
            return None if x is None or y is None else (x, y)

        return {
            name: lambda a=a, b=b: values(a, b)  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
            for name, (a, b) in call.known.items()
            if name != but and name in fx.by_name and name not in fx.inner and fits(fx.by_name[name].kind, a)
        }


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
    """The same two contents as before, in another place: what they were there they are here."""
    judged = Judged.FOLLOWS if known.judged is Judged.DIFFERENT else known.judged
    return Result(judged=judged, how=known.how, comparison=known.comparison, spread=known.spread)


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


def _from_replay(
    call: Call,
    a: Value,
    x: torch.Tensor,
    y: torch.Tensor,
    comparison: Comparison,
    apart: float,
    explained: Explained,
    before: _Before,
) -> Result:
    from torchsan.reference.judge import Outcome

    graphs = call.graphs
    assert graphs is not None
    mine, other = explained.outcomes
    rewritten = graphs.rewritten(explained.inside)
    if mine is other is Outcome.RIGHT:
        judged = Judged.FOLLOWS if before.parted else Judged.ROUNDING
        return Result(judged=judged, how=How.REPLAY, comparison=comparison, spread=apart)
    if Outcome.RIGHT in (mine, other) and Outcome.UNDECIDED in (mine, other) and not rewritten:
        judged = Judged.UNDECIDED
    else:
        judged = Judged.DIFFERENT
    text = differing_text(graphs, x, y, explained, rewritten)
    return Result(judged=judged, how=How.REPLAY, comparison=comparison, spread=apart, text=text, blamed=rewritten)
