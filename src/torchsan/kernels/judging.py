"""What the reference says, and whether a kernel's result is one that rounding could have given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchsan.kernels.inputs import Leaves, flatten
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import RepeatableCall, Results
from torchsan.reference.judge import Judgement, Outcome, judge, settle
from torchsan.reference.nudge import value_noise
from torchsan.torch_internals.dispatch import OperatorMode, pop_mode, push_mode
from torchsan.torch_internals.fakes import CannotFakeError, known_number, run_fake

_SAMPLES = 8
_FAILURES = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError, Unavailable, AssertionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a tensor compares with the reference's: right, or where not.

    `relative` is the largest error beside the element or the size of all; `arithmetic` the one that explains it.
    `finite` says whether the reference is finite in every bad place.
    """

    right: bool
    bad: torch.Tensor | None = None
    expected: torch.Tensor | None = None
    width: torch.Tensor | None = None
    relative: float = 0.0
    arithmetic: str | None = None
    finite: bool = True


RIGHT = Verdict(right=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """In the place of a reference: nothing says what is right; the fake of `operator`, if given, which shapes are."""

    operator: Any = None


class Reference:
    """The function that is right."""

    def __init__(self, function: Callable[..., Any], rebuild: Callable[[Sequence[Any]], Any]) -> None:
        self._function, self._rebuild = function, rebuild
        self.operators: Counter[str] = Counter()
        self._wide: bool | None = None
        self.random = False
        """Whether its results depend on random numbers of its own: then there is nothing to compare with."""

    def _flat(self, leaves: list[Any]) -> tuple[Any, ...]:
        found, _ = flatten(self._function(*self._rebuild(leaves)))
        return tuple(_tensor(o) for o in found if o is not None)

    def asked(self, leaves: Leaves, seed: int) -> Answer:
        """Call it. Whatever it raises is raised."""
        torch.manual_seed(seed)
        places = frozenset(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        call = RepeatableCall(leaves, [f"input {i}" for i in range(len(leaves))], places)
        if self._wide is None:
            self._wide = self._look(call)
        answer = Answer(call, self._flat, call.run(self._flat, None), leaves, wide=self._wide)
        if answer.results.draws and not self.random:
            torch.manual_seed(seed + 1)
            other = RepeatableCall(leaves, call.names, places).run(self._flat, None)
            self.random = any(
                a is not None and b is not None and not torch.equal(_bits(a), _bits(b))
                for a, b in zip(answer.results.tensors.values(), other.tensors.values(), strict=False)
            )
        return answer

    def _look(self, call: RepeatableCall) -> bool:
        """Note the operators that it runs; return whether it computes in float64 what it gets in less."""
        wide = False

        def seen(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal wide
            result = func(*args, **kwargs)
            self.operators[str(func)] += 1
            wide |= isinstance(result, torch.Tensor) and result.dtype is torch.float64
            return result

        mode = OperatorMode(seen)

        def watched(leaves: list[Any]) -> Any:
            push_mode(mode)
            try:
                return self._flat(leaves)
            finally:
                pop_mode(mode)

        call.run(watched, None)
        given = {a.dtype for a in call.inputs.copies(wide=False)[0] if isinstance(a, torch.Tensor)}
        return wide and torch.float64 not in given


def _tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, bool | int | float) else value


class Unreferenced:
    """Asked where nothing says what is right: it knows what an operator declares, and takes all inputs."""

    random = False

    def __init__(self, nothing: Nothing, rebuild: Callable[[Sequence[Any]], Any]) -> None:
        self._operator, self._rebuild = nothing.operator, rebuild
        self.operators: Counter[str] = Counter()

    def asked(self, leaves: Leaves, seed: int) -> Unjudged:
        """What the operator's fake returns for these inputs; nothing if it has none, or its sizes depend on data."""
        tensors: dict[str, torch.Tensor | None] = {}
        if self._operator is not None:
            try:
                found, _ = flatten(run_fake(self._operator, tuple(self._rebuild(leaves)), {}).result)
                tensors = {f"output {i}": _without_data(t) for i, t in enumerate(t for t in found if t is not None)}
            except (CannotFakeError, *_FAILURES):
                tensors = {}
        return Unjudged({} if None in tensors.values() else tensors)


def _without_data(t: Any) -> torch.Tensor | None:
    if not isinstance(t, torch.Tensor):
        return torch.tensor(t, device="meta") if isinstance(t, bool | int | float) else None
    sizes = [known_number(n) for n in t.shape]
    known = all(type(n) is int for n in sizes)
    return torch.empty(sizes, dtype=t.dtype, device="meta") if known else None


class Unjudged:
    """What is known of results that nothing is compared with."""

    def __init__(self, tensors: dict[str, torch.Tensor | None]) -> None:
        self.results = Results(tensors=tensors)
        self.outputs = list(tensors)
        self.written: dict[int, str] = {}

    def tensor(self, name: str) -> torch.Tensor:
        """Shape and dtype of a result."""
        found = self.results.tensors[name]
        assert found is not None
        return found

    def exact(self, name: str) -> torch.Tensor:
        """Nobody can say: raise LookupError."""
        raise LookupError(name)

    def judged(self, name: str, actual: torch.Tensor) -> Verdict:
        """Nobody can say."""
        return RIGHT


class Answer:
    """What the reference gave for one set of inputs, and can compute again in other arithmetics."""

    def __init__(
        self,
        call: RepeatableCall,
        function: Callable[[list[Any]], Any],
        results: Results,
        leaves: Leaves,
        *,
        wide: bool,
    ) -> None:
        self._call, self._function, self._leaves, self._wide = call, function, leaves, wide
        self.results = results
        self.outputs = [f"output {i}" for i in range(len(results.tensors)) if f"output {i}" in results.tensors]
        self.written = {i: f"input {i} after the call" for i in range(len(leaves)) if self._changed(i)}
        self._runs: dict[tuple[Arithmetic, int], Results] = {}

    def _changed(self, i: int) -> bool:
        after = self.results.tensors.get(f"input {i} after the call")
        return after is not None and not torch.equal(_bits(after), _bits(self._leaves[i]))

    def tensor(self, name: str) -> torch.Tensor:
        """One of its results."""
        found = self.results.tensors[name]
        assert found is not None
        return found

    def exact(self, name: str) -> torch.Tensor:
        """One of its results, as computed in float64 if that can be."""
        try:
            found = self._run(name, Arithmetic.EXACT, 0)
        except Unavailable:
            found = None
        return found if isinstance(found, torch.Tensor) else self.tensor(name)

    def judged(self, name: str, actual: torch.Tensor) -> Verdict:
        """Compare a tensor of the same shape with one of the results."""
        own = self.tensor(name)
        if actual.dtype != own.dtype or self._wide:
            return self._by_float64(name, actual)
        try:
            return _verdict(settle(partial(self._run, name), actual), actual)
        except Unavailable:
            pass
        return _verdict(judge(actual, own, own, []), actual)

    def _run(self, name: str, arithmetic: Arithmetic, seed: int) -> Any:
        if arithmetic is Arithmetic.EAGER:
            return self.tensor(name)
        key = (arithmetic, seed)
        if key not in self._runs:
            try:
                self._runs[key] = self._call.run(self._function, arithmetic, seed=seed)
            except _FAILURES as e:
                if arithmetic is not Arithmetic.NUDGED:
                    raise Unavailable(f"the reference cannot be computed in {arithmetic}: {e}") from e
                self._runs[key] = self._moved(seed, None)
        return self._runs[key].tensors.get(name)

    def _moved(self, seed: int, arithmetic: Arithmetic | None) -> Results:
        """The reference's results for inputs whose last bits differ."""
        leaves = [_moved(leaf, seed) for leaf in self._leaves]
        call = RepeatableCall(leaves, self._call.names, frozenset(range(len(leaves))))
        return call.run(self._function, arithmetic, seed=seed)

    def _by_float64(self, name: str, actual: torch.Tensor) -> Verdict:
        """For a reference in float64, which does not round as a kernel does: what float32 would do gives the width."""
        own = self.tensor(name)
        eager = own.to(actual.dtype)
        samples: list[torch.Tensor] = []
        exact: Any = own
        for seed in range(1, _SAMPLES):
            try:
                exact = self._run(name, Arithmetic.EXACT, 0)
                samples.append(self._run(name, Arithmetic.ROUGH, seed))
                other = self._moved(seed, Arithmetic.EXACT).tensors[name]
                if other is not None:
                    samples.append(other)
            except (*_FAILURES, KeyError):
                break
        near = [s for s in samples if isinstance(s, torch.Tensor) and s.shape == actual.shape]
        return _verdict(judge(actual, eager, exact.to(torch.float64) if _real(exact) else exact, near), actual)


def _real(t: torch.Tensor) -> bool:
    return t.is_floating_point()


def _moved(leaf: Any, seed: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    eps = 4 * max(torch.finfo(leaf.dtype).eps, torch.finfo(torch.float32).eps)
    eps = eps if leaf.dtype in (torch.float32, torch.float64) else 0.0
    return (leaf.detach().double() * (1 + eps * value_noise(leaf, seed))).to(leaf.dtype)


def _bits(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return t.contiguous().reshape(-1).view(torch.uint8) if t.numel() else t.reshape(-1)


def _verdict(judgement: Judgement, actual: torch.Tensor) -> Verdict:
    if judgement.bad is None or judgement.outcome in (Outcome.RIGHT, Outcome.UNDECIDED, Outcome.EAGER_WRONG):
        return RIGHT
    centre = judgement.centre if judgement.centre is not None else judgement.eager
    a, c = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (actual, centre))
    good = torch.isfinite(c) & torch.isfinite(judgement.eager if judgement.eager.shape == c.shape else c)
    lost = bool((good & ~torch.isfinite(a)).any())
    both = good & torch.isfinite(a)
    size = float(c[both].abs().square().mean().sqrt()) if bool(both.any()) else 0.0
    bad = both & judgement.bad
    worst = ((a - c)[bad].abs() / c[bad].abs().clamp_min(size or 1.0)) if bool(bad.any()) else torch.zeros(1)
    relative = float(worst.max())
    return Verdict(
        right=False,
        bad=judgement.bad,
        expected=centre,
        width=judgement.width,
        relative=float("inf") if lost else relative,
        arithmetic=judgement.explained.value if judgement.explained is not None else None,
        finite=bool((good & judgement.bad).any()),
    )
