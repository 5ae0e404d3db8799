"""Rounding told from bugs: is a compiled result one that rounding could have given?

Float64 gives the centre. How far eager lies from it, and how far replays with random last bits do, gives the width,
element by element. There is no tolerance to tune.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

import torch

from torchsan.reference.arithmetic import TEXTBOOK_RUNS, Arithmetic, Unavailable, explanations
from torchsan.reference.coherence import Coherent
from torchsan.reference.distances import (
    NEAR_ULPS,
    are_counts,
    as_double,
    away,
    doubt,
    has_ulp,
    is_half,
    near,
    same,
    scale,
)

_EAGER_WIDTHS = 8.0
"""How many times as far from the centre as eager a result may lie. Eager is one sample, and may be lucky."""
_NUDGED_WIDTHS = 3.0
"""How many times as far as the nudged replays, whose noise is larger than that of rounding already."""
_NUDGED_RUNS = (1, 2, 4, 16)
"""How many nudged replays at first, and how many before something is called wrong."""
_ROUGH_RUNS = range(1, 17)
"""The same in float64, of which three are enough for most."""
_SAME = 1e-7
"""Two float64 results this close are one: constants are often rounded to float32 on the way."""
_SAME_DOUBLE = 2e-14
"""The same for programs that compute in float64 themselves."""
_GARBAGE = 0.125
"""The relative error of eager from which on it is no judge of anybody."""
_EXPLAINED = 0.1
"""The part of an error that a less precise arithmetic must leave over at most, if it is to explain it."""
_NOISE = 0.01
"""A part of an error that may come and go without being the error."""
_USUAL_ULPS = {True: 0.35, False: 16.0}
"""Half of what a result is usually off by at most for other reasons than rounding, in eps; the first in half precision,
where functions are computed in float32."""
_USUAL_NOISE = 1.5
"""The same in standard deviations of what rounding does to an element."""
_FAR = 1e-2
"""A relative error in the norm from which on precision is no explanation."""
_FARTHER = 4.0
"""How many times as far as eager, where that is off by as much itself."""


class Outcome(StrEnum):
    """What a result is."""

    RIGHT = "right"
    WRONG = "wrong"
    NON_FINITE = "non-finite"
    """NaN or Inf where eager and float64 have a number."""
    IMPRECISE = "imprecise"
    """Right in exact arithmetic, but as a less precise arithmetic computes it, which `explained` names."""
    EAGER_WRONG = "eager-wrong"
    """What eager gives for contiguous operands: its own result depends on their strides."""
    UNDECIDED = "undecided"
    """Outside the width, but not beyond doubt, or where eager itself is far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome, eager's result, and for all but RIGHT which elements are bad, the centre, and the width there."""

    outcome: Outcome
    eager: torch.Tensor
    bad: torch.Tensor | None = None
    centre: torch.Tensor | None = None
    width: torch.Tensor | None = None
    coherent: Coherent | None = None
    """The operator whose error all elements share, if that is what was found."""
    otherwise: Judgement | None = None
    """What it is if other data do not show the same error; None if they need not be asked."""

    explained: Arithmetic | None = None

    @property
    def outside(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Which elements are bad, the centre, and the width there, of what is not right."""
        assert self.bad is not None
        assert self.centre is not None
        assert self.width is not None
        return self.bad, self.centre, self.width


class Unlike(Unavailable):
    """The result has another shape or dtype than eager's, so that there is nothing to judge."""

    def __init__(self, actual: torch.Tensor, eager: Any) -> None:
        """`eager` is kept; it may be no tensor at all."""
        super().__init__(f"it is {_kind(actual)}, but {_kind(eager)} when it is computed again")
        self.eager = eager


Run = Callable[[Arithmetic, int], Any]
"""Computes a result again, in an arithmetic and with the noise of a seed. Raises Unavailable where it cannot."""


class Closer(Protocol):
    """What the replay of a graph can tell beyond its results."""

    @property
    def rounds(self) -> bool:
        """Whether anything is rounded between what is known and the result."""

    @property
    def sums(self) -> bool:
        """Whether there are long sums on the way, whose rounding is hard to bound."""

    @property
    def thorough(self) -> bool:
        """Whether to look for errors in results that are right element by element, too."""

    def rounded(self, actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> Sequence[torch.Tensor]:
        """Results that differ from float64's by rounding alone; none where they would cost too much."""

    def coherent(self, actual: torch.Tensor, rounded: Sequence[torch.Tensor]) -> Coherent | None:
        """The operator whose error all elements of the result share, if there is one."""


def settle(run: Run, actual: torch.Tensor, closer: Closer | None = None) -> Judgement:
    """Judge a compiled result. This is the one place where rounding is told from bugs.

    By eager's result first; if that differs, by the float64 one and one nudged one; if it looks wrong, by more and more
    nudged ones. What is right element by element may still share an error in all of them, which `closer` finds, or be
    off by more than sums usually are: such a judgement has an `otherwise`, and is to be put to other data. What is
    wrong may be explained by a less precise arithmetic. Raise Unlike if eager's has another shape or dtype,
    Unavailable if there is no eager result.
    """
    run = _once_exact(run)
    eager = run(Arithmetic.EAGER, 0)
    if not isinstance(eager, torch.Tensor) or eager.shape != actual.shape or eager.dtype != actual.dtype:
        raise Unlike(actual, eager)
    equal = same(actual, eager)
    if bool(equal.all()):
        return Judgement(outcome=Outcome.RIGHT, eager=eager)
    if closer is not None and not closer.rounds and has_ulp(actual.dtype):
        zero = torch.zeros(actual.shape, dtype=torch.float64, device=actual.device)
        return Judgement(outcome=Outcome.WRONG, eager=eager, bad=~equal, centre=as_double(eager), width=zero)
    close = agrees(actual, eager)
    usual = None if close else _usual(run, actual, eager, closer)
    if close:
        judgement = Judgement(outcome=Outcome.RIGHT, eager=eager)
    elif usual is not None and usual.outcome is Outcome.RIGHT:
        judgement = usual  # So it is by all that sums may lose.
    else:
        judgement = _elementwise(run, actual, eager)
    if not has_ulp(actual.dtype):
        return judgement
    if judgement.outcome is Outcome.WRONG:
        return _explained(run, actual, judgement)
    undecided = judgement.outcome is Outcome.UNDECIDED
    # In half precision a unit in the last place is much; in single precision what is so near is right.
    hidden = judgement.outcome is Outcome.RIGHT and (not close or is_half(actual.dtype))
    if closer is not None and (undecided or (hidden and closer.thorough)):
        return _suspected(run, actual, judgement, usual, closer)
    return judgement


def _once_exact(run: Run) -> Run:
    """The same, with the float64 result computed once, however often it is asked for."""
    exact: list[Any] = []

    def remembering(arithmetic: Arithmetic, seed: int) -> Any:
        if arithmetic is not Arithmetic.EXACT:
            return run(arithmetic, seed)
        if not exact:
            exact.append(run(arithmetic, seed))
        return exact[0]

    return remembering


def _explained(run: Run, actual: torch.Tensor, judgement: Judgement) -> Judgement:
    """A wrong result, unless some arithmetic gives the very same."""
    match explained := _explanation(run, actual, judgement):
        case None:
            return judgement
        case Arithmetic.CONTIGUOUS:
            return replace(judgement, outcome=Outcome.EAGER_WRONG, explained=explained)
        case _:
            return replace(judgement, outcome=Outcome.IMPRECISE, explained=explained)


def _suspected(
    run: Run, actual: torch.Tensor, judgement: Judgement, usual: Judgement | None, closer: Closer
) -> Judgement:
    """What was judged element by element, unless all elements share an error, or some are off by more than `usual`."""
    eager = judgement.eager
    try:
        exact = run(Arithmetic.EXACT, 0)
    except Unavailable:
        return judgement
    rounded = closer.rounded(actual, eager, exact)
    if closer.thorough and usual is None and rounded:
        usual = _outlying(actual, eager, exact, rounded)
    if usual is not None and usual.outcome is Outcome.WRONG:
        suspicion = _explained(run, actual, usual)
        if suspicion.outcome is Outcome.WRONG:
            judgement = replace(suspicion, otherwise=judgement)
    coherent = closer.coherent(actual, rounded) if rounded else None
    if coherent is None:
        return judgement
    centre = as_double(exact)
    width = centre.abs() * torch.finfo(actual.dtype).eps
    suspicion = Judgement(outcome=Outcome.WRONG, eager=eager, bad=~same(actual, eager), centre=centre, width=width)
    return replace(suspicion, coherent=coherent, otherwise=judgement)


def _usual(run: Run, actual: torch.Tensor, eager: torch.Tensor, closer: Closer | None) -> Judgement | None:
    """The result judged by what long sums usually lose; None if there are none, or it is not to be looked at so."""
    if closer is None or not closer.thorough or not has_ulp(actual.dtype):
        return None
    if is_half(actual.dtype) or actual.is_complex() or not closer.sums:
        return None  # Half precision is summed in single precision, so that the sums' rounding does not show.
    try:
        # Without any noise the width is the least that it can be: what is not wrong by it needs no replay.
        judgement = judge(actual, eager, run(Arithmetic.EXACT, 0), [])
        if judgement.outcome is not Outcome.WRONG:
            return judgement
        return _elementwise(run, actual, eager, Arithmetic.USUAL)
    except Unavailable:
        return None


def _outlying(
    actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, rounded: Sequence[torch.Tensor]
) -> Judgement | None:
    """The elements that are off by more than rounding usually moves each of them; None if there are none."""
    half, info = is_half(actual.dtype), torch.finfo(actual.dtype)
    a, c, *samples = (as_double(t) for t in (actual, exact, *rounded))
    moved = torch.stack([away(s, c) for s in samples]).square().mean(0).sqrt()
    width = c.abs() * (_USUAL_ULPS[half] * info.eps) + info.tiny + moved * _USUAL_NOISE
    distance = (a - c).abs()
    settled = torch.stack([torch.isfinite(t) for t in (a, c, *samples)]).all(0)
    bad = settled & (distance > 2 * width) & ~near(actual, eager)
    if not half:
        bad &= distance > NEAR_ULPS * info.eps * scale(c)
    if not bool(bad.any()):
        return None
    return Judgement(outcome=Outcome.WRONG, eager=eager, bad=bad, centre=c, width=width)


def _elementwise(
    run: Run, actual: torch.Tensor, eager: torch.Tensor, noise: Arithmetic = Arithmetic.NUDGED
) -> Judgement:
    try:
        exact = run(Arithmetic.EXACT, 0)
    except Unavailable:
        exact = eager  # Without float64, eager's own result is the best centre there is.
    if not _fits(exact, eager):
        raise Unavailable("its shape depends on how numbers are rounded")
    nudged: list[torch.Tensor] = []
    done = 0
    for wanted in _NUDGED_RUNS:
        while done < wanted:
            done += 1
            other = run(noise, done)
            if _fits(other, eager):
                nudged.append(other)
        judgement = judge(actual, eager, exact, nudged)
        if judgement.outcome is Outcome.RIGHT:
            break
    return judgement


def differ_in_float64(run: Run, actual: torch.Tensor, expected: torch.Tensor, *, double: bool = False) -> Judgement:
    """Judge two results that were both computed in float64, and are not the same number.

    Two graphs that mean the same agree to 1e-13 there, but for constants that one of them rounds to float32. `run`
    computes the expected one again; what float32's rounding of every result can do to it is the width. If the program
    is one of `double` precision itself, it is what its own rounding can do.
    """
    noise, tolerance = (Arithmetic.NUDGED, _SAME_DOUBLE) if double else (Arithmetic.ROUGH, _SAME)

    def sampled(seeds: Sequence[int]) -> list[torch.Tensor]:
        return [other for seed in seeds if _fits(other := run(noise, seed), expected)]

    samples = sampled(_ROUGH_RUNS[:3])
    if not has_ulp(expected.dtype):
        return _judge_discrete(actual, expected, expected, samples)
    judged = _judge_double(actual, expected, samples, tolerance)
    if judged.outcome is Outcome.RIGHT or not _doubtful(judged, actual):
        return judged
    return _judge_double(actual, expected, samples + sampled(_ROUGH_RUNS[3:]), tolerance)


def _doubtful(judged: Judgement, actual: torch.Tensor) -> bool:
    """Whether more samples might show that rounding does go that far: where a choice goes either way, a few do not."""
    assert judged.centre is not None
    assert judged.width is not None
    return not bool(((as_double(actual) - judged.centre).abs() > 10 * judged.width).any())


def _judge_double(
    actual: torch.Tensor, expected: torch.Tensor, rough: Sequence[torch.Tensor], tolerance: float
) -> Judgement:
    """Judge by what the rough runs say that rounding does."""
    a, c = as_double(actual), as_double(expected)
    samples = [as_double(r) for r in rough]
    size = torch.where(torch.isfinite(c), c.abs(), torch.zeros_like(c.abs()))
    width = (size + float(size.square().mean().sqrt())) * tolerance
    if samples:
        width = width + torch.stack([away(s, c) for s in samples]).amax(0) * _NUDGED_WIDTHS
    numbers = torch.isfinite(a) & torch.isfinite(c)
    settled = torch.stack([torch.isfinite(s) for s in (c, *samples)])
    right = same(a, c) | (numbers & ~((a - c).abs() > width)) | (settled.any(0) & ~settled.all(0))
    if bool(right.all()):
        return Judgement(outcome=Outcome.RIGHT, eager=expected)
    bad = ~right
    lost = bool((~torch.isfinite(a) & torch.isfinite(c))[bad].all())
    outcome = Outcome.NON_FINITE if lost else Outcome.WRONG
    return Judgement(outcome=outcome, eager=expected, bad=bad, centre=c, width=width)


def _fits(other: Any, eager: torch.Tensor) -> bool:
    return isinstance(other, torch.Tensor) and other.shape == eager.shape


def agrees(actual: torch.Tensor, eager: torch.Tensor) -> bool:
    """Whether the two differ by no more than rounding the result itself may: then nothing else needs to be known."""
    return actual.numel() == 0 or bool(near(actual, eager).all())


def same_in_float64(actual: torch.Tensor, expected: torch.Tensor, *, double: bool = False) -> bool:
    """Whether two graphs that were both run in float64, as those of a `double` program are, gave the same number.

    The shapes are equal. Rounding in float64 is far below what is allowed here, so that what is not the same has
    another meaning.
    """
    if actual.numel() == 0:
        return True
    if not has_ulp(expected.dtype):
        return bool((actual == expected).all())
    a, e = as_double(actual), as_double(expected)
    tolerance = _SAME_DOUBLE if double else _SAME
    distance = (a - e).abs()
    # Most are far nearer than has to be asked element by element. Infinities and what is no number compare as false.
    if float(distance.max()) < tolerance * float(torch.linalg.vector_norm(e)) / math.sqrt(e.numel()):
        return True
    size = torch.where(torch.isfinite(e), e.abs(), torch.zeros_like(distance))
    allowed = (size + float(size.square().mean().sqrt())) * tolerance
    return bool(((distance <= allowed) | same(a, e)).all())


def is_another(actual: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor | None = None) -> bool:
    """Whether a result is, as a whole, another one than float64's and not a less precise one.

    Where `eager` is given and is no more precise itself, it is another one if it lies several times as far off.
    """
    if not has_ulp(actual.dtype) or actual.shape != exact.shape:
        return True
    c = as_double(exact)
    own = 0.0 if eager is None else float((eager - c).norm())
    return not float((actual - c).norm()) <= max(_FAR * float(c.norm()), _FARTHER * own)


def is_noise(judgement: Judgement, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a result that comes out otherwise every time differs by rounding; the judgement is of one of them.

    It does if that is right, or wrong by much more than the two differ.
    """
    if judgement.bad is None or judgement.centre is None:
        return True
    spread = (one - other).abs().to(torch.float64) if one.dtype is not torch.bool else (one ^ other).double()
    error = (one.to(judgement.centre.dtype) - judgement.centre).abs()[judgement.bad]
    return float(spread[judgement.bad].max()) <= _NOISE * float(error.max())


def judge(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, nudged: Sequence[torch.Tensor]) -> Judgement:
    """Judge a compiled result by eager's, the float64 one and some nudged ones, all of the same shape.

    More nudged replays can only make a result right that was not.
    """
    if not has_ulp(actual.dtype):
        return _judge_discrete(actual, eager, exact, nudged)
    doubtful = ~near(actual, eager)
    a, e, c = (as_double(t[doubtful]) for t in (actual, eager, exact))
    samples = [as_double(n[doubtful]) for n in nudged]
    width = _width(e, c, samples, actual.dtype)
    finite = torch.isfinite(a) & torch.isfinite(c)
    distance = torch.where(finite, (a - c).abs(), torch.zeros_like(width))
    # A number out of the dtype's range is infinite in it; where float64 stays finite, eager tells.
    rounded = as_double(exact[doubtful].to(actual.dtype))
    alike = [same(a, other) for other in (e, c, rounded, *samples)]
    right = torch.stack(alike).any(0) | (finite & ~(distance > width))
    # Where not even the replays agree on whether there is a number, anything goes.
    unsettled = torch.stack([torch.isfinite(s) for s in (e, c, *samples)])
    right |= unsettled.any(0) & ~unsettled.all(0)
    if bool(right.all()):
        return Judgement(outcome=Outcome.RIGHT, eager=eager)
    centre, bad = as_double(exact), ~right
    return Judgement(
        outcome=_outcome(a[bad], e[bad], c[bad], width[bad], actual.dtype, scale(centre)),
        eager=eager,
        bad=doubtful.masked_scatter(doubtful, bad),
        centre=centre,
        width=torch.zeros(actual.shape, dtype=width.dtype, device=width.device).masked_scatter(doubtful, width),
    )


def _judge_discrete(
    actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, nudged: Sequence[torch.Tensor]
) -> Judgement:
    """Integers and truth values jump: where random last bits make them jump, nobody can say which is right."""
    others = [eager, exact.to(actual.dtype), *nudged]
    right = torch.stack([actual == other for other in others]).any(0)
    unstable = torch.stack([other != eager for other in others]).any(0)
    bad = ~(right | unstable)
    if not bool(bad.any()):
        return Judgement(outcome=Outcome.RIGHT, eager=eager)
    return Judgement(outcome=Outcome.WRONG, eager=eager, bad=bad, centre=exact, width=torch.zeros(actual.shape))


def _width(e: torch.Tensor, c: torch.Tensor, samples: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    size = torch.where(torch.isfinite(c), c.abs(), torch.zeros_like(c.abs()))
    # A nudge is several units in the last place of what rounding in half precision moves by half a unit.
    eager, nudged = (2.0, 0.75) if is_half(dtype) else (_EAGER_WIDTHS, _NUDGED_WIDTHS)
    width = size * (2 * info.eps) + info.tiny + away(e, c) * eager
    if samples:
        width = width + torch.stack([away(s, c) for s in samples]).amax(0) * nudged
    return width


def _outcome(
    a: torch.Tensor, e: torch.Tensor, c: torch.Tensor, width: torch.Tensor, dtype: torch.dtype, typical: float
) -> Outcome:
    """What elements outside of their width amount to."""
    numbers = torch.isfinite(a) & torch.isfinite(c)
    if not bool(numbers.any()):
        return Outcome.NON_FINITE if bool((~torch.isfinite(a)).all()) else Outcome.WRONG
    if not bool(numbers.all()):
        return Outcome.WRONG
    info = torch.finfo(dtype)
    if float(((e - c).abs() / c.abs().clamp_min(max(typical, info.tiny))).median()) > _GARBAGE:
        return Outcome.UNDECIDED
    distance = (a - c).abs()
    beyond = (distance > doubt(dtype) * width) & (distance > NEAR_ULPS * info.eps * typical)
    return Outcome.WRONG if bool(beyond.any()) else Outcome.UNDECIDED


def _explanation(run: Run, actual: torch.Tensor, judgement: Judgement) -> Arithmetic | None:
    """The arithmetic that gives the very errors that `actual` has, if there is one.

    Contiguous operands first: an operator that computes something else for other strides is wrong in eager.
    """
    bad, *others = judgement.outside
    a, centre, width = (t[bad] for t in (as_double(actual), *others))
    # Each by what rounding explains of it: of numbers of all sizes, the large ones are not all that matters.
    error = (a - centre).abs() / width
    if not bool(torch.isfinite(error).all()):
        return None  # Where there is no number, or should be none, precision is not the question.
    candidates = [(Arithmetic.CONTIGUOUS, 0)]
    if not are_counts(a, as_double(judgement.eager[bad]), centre):
        candidates += [(narrow, 0) for narrow in explanations(actual.dtype)]
        candidates += [(Arithmetic.TEXTBOOK, seed) for seed in range(1, TEXTBOOK_RUNS)]
    plain = False
    for arithmetic, seed in candidates:
        if arithmetic is Arithmetic.TEXTBOOK and plain:
            break
        try:
            other = run(arithmetic, seed)
        except (Unavailable, RuntimeError, NotImplementedError, TypeError, IndexError):
            continue  # An index that is computed from rounded numbers may be none.
        if not _fits(other, judgement.eager):
            continue
        # By all formulas at once it is eager's result: then nothing is computed by one, and each alone gives the same.
        plain = (arithmetic, seed) == (Arithmetic.TEXTBOOK, 0) and bool(same(other, judgement.eager).all())
        left = (a - as_double(other[bad])).abs() / width
        # Not a number compares as false, and so explains nothing.
        if float(left.norm()) <= _EXPLAINED * float(error.norm()):
            return arithmetic
    return None


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
