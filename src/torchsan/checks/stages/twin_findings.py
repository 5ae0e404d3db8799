"""What differs between a compiled call and the user's own Python, judged like everything else by `reference.judge`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsan.checks.stages.findings import Difference, wrong
from torchsan.records import Kind, Severity
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import Results
from torchsan.reference.distances import as_near_as_eager, as_near_as_usual, relative_error
from torchsan.reference.judge import Outcome, agrees, is_another
from torchsan.reference.twin import After, Autocast, Twin

_ULPS = 64.0
"""Units in the last place of a tensor's scale below which nothing is asked: a kernel may be that imprecise, and what
Dynamo did is not."""

_OTHER_BITS = range(1, 9)
"""The runs of the user's Python, with other last bits, that show how far rounding alone can take it."""

Pairs = Mapping[str, tuple[Any, Any]]
"""What the compiled call and the user's Python gave, by name: tensors and plain values."""


def unlike(mine: After, theirs: After) -> list[Difference]:
    """What differs in kind: shapes, dtypes, what gradients flow into, and which output is which input."""
    found = []
    for name, told in theirs.tensors.items():
        other = mine.tensors.get(name)
        if other is None:
            if name.startswith("output"):
                message = f"{name} is a tensor in Python, and is none"
                found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
        elif (other.shape, other.dtype) != (told.shape, told.dtype):
            message = f"{name} is {_meta(other)}, not {_meta(told)}"
            found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
        elif name.startswith("output") and other.requires_grad != told.requires_grad:
            message = f"{name} {'takes' if other.requires_grad else 'takes no'} gradient, unlike in Python"
            found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
    for name in mine.tensors:
        if name.startswith("output") and name not in theirs.tensors and name in theirs.values:
            message = f"{name} is a tensor, and is {theirs.values[name]!r:.80} in Python"
            found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
    for output, source in sorted(mine.aliases - theirs.aliases):
        message = f"{output} shares memory with {source}, which it does not in Python"
        found.append(Difference(name=output, kind=Kind.UNDECLARED_ALIAS, message=message))
    for output, source in sorted(theirs.aliases - mine.aliases):
        message = f"{output} does not share memory with {source}, which it does in Python"
        found.append(Difference(name=output, kind=Kind.METADATA_MISMATCH, message=message))
    for output, source in sorted(theirs.same ^ mine.same):
        now, then = ("is", "is not") if (output, source) in mine.same else ("is not", "is")
        message = f"{output} {now} {source} itself, which it {then} in Python"
        # Another handle on the same memory holds what is written through either, then and later.
        severity = Severity.WARNING if now == "is not" and (output, source) in mine.aliases else Severity.ERROR
        found.append(Difference(name=output, kind=Kind.METADATA_MISMATCH, message=message, severity=severity))
    return found


def apart(
    pairs: Pairs, answers: Answers, known: set[str], usual: dict[str, float], what: str = "", *, explained: bool = False
) -> list[Difference]:
    """Those of the pairs that rounding does not explain, and that come out the same each time in Python.

    All that are not the same if they are `explained` by an error that is known: there is nothing to find out then.

    `usual` is how far rounding took each of them, as a part of its size, in earlier calls: what is no farther is not
    asked about again, and what it takes farther in this one is noted there.
    """
    tensors, others = answers.as_tensors({n: p for n, p in pairs.items() if n not in known})
    far = {n: (a, e) for n, (a, e) in tensors.items() if not near(a, e) and not _as_before(a, e, usual.get(what + n))}
    if explained:
        message = "is not what it is in Python"
        return [Difference(name=what + n, kind=Kind.WRONG_VALUES, message=f"{n} {message}") for n in (*far, *others)]
    # Where the Python gives what was captured, the compiled code was judged by just that.
    doubtful: Pairs = {n: p for n, p in far.items() if not answers.captured(n, p[1])}
    answers.wanted = frozenset([*doubtful, *others])
    doubtful = _farther_than_python(doubtful, answers) if doubtful else {}
    found: list[Difference] = []
    if doubtful or others:
        steady = answers.steady(doubtful, others)
        told = {n: f"{what}{n} is {mine!r:.80}, not {e!r:.80}" for n, (mine, e) in others.items() if n in steady}
        found = [Difference(name=what + n, kind=Kind.WRONG_VALUES, message=text) for n, text in told.items()]
        found += _judged({n: p for n, p in doubtful.items() if n in steady}, answers, what)
    if not found:
        usual |= {what + n: relative_error(a, e) for n, (a, e) in far.items()}
    return found


def _as_before(a: torch.Tensor, e: torch.Tensor, usual: float | None) -> bool:
    return usual is not None and as_near_as_usual(a, e, usual)


def _farther_than_python(doubtful: Pairs, answers: Answers) -> Pairs:
    """Those of the pairs of tensors that are farther from float64's than the Python's own; all if it has none.

    One run instead of the many that tell what rounding can do, which decide about the rest.
    """
    try:
        exact = answers.again(Arithmetic.EXACT, 0)
    except Unavailable:
        return doubtful
    centres = {n: _tensor(exact.get(n)) for n in doubtful}
    return {n: (a, e) for n, (a, e) in doubtful.items() if (c := centres[n]) is None or not as_near_as_eager(a, e, c)}


def _judged(doubtful: Pairs, answers: Answers, what: str) -> list[Difference]:
    """Those of the pairs of tensors that rounding does not explain."""
    try:
        doubtful = _worse_than_python(doubtful, answers)
    except Unavailable:  # In no other arithmetic can it be run: then only what is another result altogether is one.
        different = [n for n, (mine, e) in doubtful.items() if is_another(mine, e)]
        messages = {n: f"{what}{n} is another tensor than in Python" for n in different}
        return [Difference(name=what + n, kind=Kind.WRONG_VALUES, message=m) for n, m in messages.items()]
    actual = Results(tensors={what + n: mine for n, (mine, _) in doubtful.items()})
    eager = {n: e for n, (_, e) in doubtful.items()}

    def rerun(arithmetic: Arithmetic, seed: int) -> Results:
        given = eager if arithmetic is Arithmetic.EAGER else answers.again(arithmetic, seed)
        return Results(tensors={what + n: _tensor(given.get(n)) for n in doubtful})

    judged = wrong(actual, list(actual.tensors), rerun)
    return [d for d in judged if d.judgement is None or d.judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE)]


def _worse_than_python(doubtful: Pairs, answers: Answers) -> Pairs:
    """Those that are, as a whole, farther from float64's than the Python itself with other last bits ever is.

    Element by element they are others where rounding decides a route or an index on the way: each run of the Python
    with other last bits then jumps elsewhere, and the size of such jumps is all that can be compared. Gradients of half
    precision often have no float64 run; then the Python's own result takes its place. Raise Unavailable if it cannot
    be run with other last bits, which it is only as long as a result is in doubt.
    """
    try:
        exact = answers.again(Arithmetic.EXACT, 0)
    except Unavailable:
        exact = {}
    runs = {n: [e] for n, (_, e) in doubtful.items()}
    for seed in _OTHER_BITS:
        if not doubtful:
            break
        given = answers.again(Arithmetic.NUDGED, seed)
        for n in doubtful:
            other = _tensor(given.get(n))
            runs[n] += [other] if other is not None else []
        doubtful = {n: p for n, p in doubtful.items() if not _as_good(p[0], runs[n], _tensor(exact.get(n)))}
    return doubtful


def _as_good(actual: torch.Tensor, runs: list[torch.Tensor], exact: torch.Tensor | None) -> bool:
    """Whether a result is about as far from the exact one as one of these runs; the first is as it is written."""
    centre = runs[0] if exact is None else exact
    if _without_number(actual) > 2 * max(map(_without_number, runs)):
        return False
    return any(as_near_as_eager(*_numbers(actual, other, centre)) for other in runs)


def _without_number(t: torch.Tensor) -> int:
    return int((~torch.isfinite(t)).sum())


def _numbers(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """The elements that are numbers in all of the tensors: which are may be a matter of rounding, too."""
    finite = torch.stack([torch.isfinite(t) for t in tensors]).all(0)
    return [t[finite] for t in tensors]


class Answers:
    """Asks a twin, each question once: about the call, or about its backward from these cotangents."""

    def __init__(
        self,
        twin: Twin,
        gradients: tuple[Mapping[str, torch.Tensor], Autocast] | None,
        after: After | None,
        captured: Callable[[str], torch.Tensor | None] = lambda _name: None,
    ) -> None:
        """`captured` gives what the graph that was captured gives under a name, run eagerly, if that is known."""
        self._twin = twin
        self._gradients = gradients
        self._after = after
        self._captured = captured
        self._known: dict[tuple[Arithmetic, int], dict[str, Any]] = {}
        self.wanted: frozenset[str] = frozenset()
        """What is asked about: of a large model the twin sends no more than that."""

    def as_tensors(self, pairs: Pairs) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, Any]]:
        """The pairs as tensors, fractions among them; and those that are something else."""
        asked = [n for n, (mine, expected) in pairs.items() if isinstance(mine, torch.Tensor) and expected is None]
        sent = self._twin.tensors(asked) if asked else {}
        tensors, others = {}, {}
        for name, (mine, expected) in pairs.items():
            expected = sent.get(name) if name in asked else expected
            a, e = _tensor(mine), _tensor(expected)
            if a is None or e is None:
                others[name] = (mine, expected)
            elif a.shape == e.shape and a.dtype == e.dtype:
                tensors[name] = (a, e)
        return tensors, others

    def captured(self, name: str, expected: torch.Tensor) -> bool:
        """Whether what was captured gives what the user's Python does."""
        found = self._captured(name)
        return (
            found is not None
            and (found.shape, found.dtype) == (expected.shape, expected.dtype)
            and agrees(found, expected)
        )

    def steady(self, tensors: Pairs, others: Pairs) -> set[str]:
        """The names under which the user's Python gives the same when it is run once more."""
        again = self.again(Arithmetic.EAGER, 0)
        same = {n for n, (_, e) in others.items() if again.get(n) == e}
        for name, (_, e) in tensors.items():
            other = _tensor(again.get(name))
            if other is None and self._gradients is not None:
                other = torch.zeros_like(e)
            if other is not None and other.shape == e.shape and other.dtype == e.dtype and agrees(other, e):
                same.add(name)
        return same

    def again(self, arithmetic: Arithmetic, seed: int) -> dict[str, Any]:
        """What is wanted, by name, in another arithmetic. Raise Unavailable if it has no meaning in it."""
        key = (arithmetic, seed)
        if key not in self._known:
            self._known[key] = self._twin.again(arithmetic, seed, self._gradients, self.wanted)
        return self._known[key]


def near(a: torch.Tensor, e: torch.Tensor) -> bool:
    """Whether two tensors of one kind differ by less than is asked about."""
    single = e.dtype in (torch.float32, torch.float64) and e.numel() > 0
    # Less than any element may be off. Infinities and what is no number compare as false.
    if single and float((a - e).abs().max()) < _ULPS * torch.finfo(e.dtype).eps * _root_mean_square(e):
        return True
    if agrees(a, e):
        return True
    if not single or not bool(torch.isfinite(e).all()):
        return False
    allowed = (e.abs() + _root_mean_square(e)) * (_ULPS * torch.finfo(e.dtype).eps)
    return bool(((a - e).abs() <= allowed).all())


def _root_mean_square(t: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(t, dtype=torch.float64)) / math.sqrt(t.numel())


def _tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    return value if isinstance(value, torch.Tensor) else None


def _meta(told: Any) -> str:
    return f"{str(told.dtype).removeprefix('torch.')}{list(told.shape)}"
