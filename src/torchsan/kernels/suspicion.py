"""What a wrong result means: precision or values; a kernel that is mistaken, or one that cheats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from torchsan.kernels.contain import Gone
from torchsan.kernels.inputs import Trial
from torchsan.kernels.observe import Case, Observation, Said, apart, observe
from torchsan.kernels.patched import replaced_by
from torchsan.kernels.referee import BRISK, Referee
from torchsan.kernels.values import ILL_CONDITIONED
from torchsan.records import Kind

_VALUES = (Kind.WRONG_VALUES, Kind.PRECISION_LOSS)
_SMALL = {torch.float16: 0.1, torch.bfloat16: 0.2}
_PLAIN = frozenset({"normal", "small integers", "zeros", "ones", "equal rows"})
_OVERFLOWING = frozenset({"large", "rising steps", "falling steps", "one peak", "offset"})
_INFINITE = float("inf")
_FEW = 8
_KEEPS = "it keeps results: called after other calls, it gives something else than in a process of its own"
_SMOOTH = 0.7
"""How alike the errors of neighbouring inputs are if a formula is wrong; those of rounding are not alike."""
_VIEWS = ("view", "reshape", "detach", "as_strided", ".t.", "transpose", "permute", "slice", "select", "unsqueeze")
_ALLOCATIONS = ("empty", "zeros", "ones", "full", "clone", "_to_copy", "copy_", "squeeze", "expand", "alias", "lift")


class Suspicion:
    """Looks again at what a referee saw."""

    def __init__(self, referee: Referee, kept: list[tuple[Case, Said, list[Observation]]]) -> None:
        """`kept` are trials with what the kernel gave."""
        self._referee, self._kept = referee, kept

    # Earlier calls

    def history(self) -> Iterator[Observation]:
        """Call the kernel several times in a row; results that depend on earlier calls are kept ones."""
        case = self._to_repeat()
        if case is None:
            return
        other = self._referee.case(replace(case.trial, seed=case.trial.seed + 7919, given=self._referee.example.fixed))
        changed = self._one_element(case)
        calls = [(case, False), (other, True), (changed, False), (case, False)]
        if not self._referee.referenced:
            moody = (Kind.NONDETERMINISTIC, Kind.UNINITIALIZED_READ, Kind.OUT_OF_BOUNDS_READ, Kind.RACE)
            if any(o.kind in moody and not o.note for o in self._referee.seen):
                return  # Whatever such a kernel gives, it may give something else next time.
            yield from self._differs_alone([(each, reuse) for each, reuse in calls if each is not None])
        else:
            yield from self._keeps_results(calls)

    def _to_repeat(self) -> Case | None:
        """A usual trial that several calls can be made of: the example itself, or a smaller one if that takes long."""
        usual = [k for k in self._kept if not k[0].trial.exotic]
        base = next((k for k in usual if k[0].trial.sizes is None), None)
        if base is None:
            return None
        if base[1].values["seconds"] >= BRISK:
            brisk = (k for k in usual if k[1].values["seconds"] < BRISK and min(_numbers(k[0]), default=0) > _FEW)
            base = next(brisk, base)
        return base[0]

    def _keeps_results(self, calls: list[tuple[Case | None, bool]]) -> Iterator[Observation]:
        """Whether a call in a row of them gives what is wrong, and is right in a process of its own."""
        try:
            self._referee.start()
            for number, (each, reuse) in enumerate(calls):
                if each is None:
                    continue
                said = self._referee.call(each, reuse=reuse)
                found = list(observe(each, said, self._referee.about, frozenset()))
                yield from (o for o in found if o.kind is Kind.UNDECLARED_ALIAS)
                if number and any(o.kind in _VALUES and not o.exotic for o in found) and self.alone(each):
                    how = "in the same memory" if reuse else "of the same shape"
                    yield Observation(
                        kind=Kind.CHEAT,
                        message=f"it keeps results: called again with other numbers {how}, it gives a wrong one, "
                        "and the right one in a process of its own",
                        trial=each.trial,
                    )
                    return
        except Gone:
            return

    def _differs_alone(self, calls: list[tuple[Case, bool]]) -> Iterator[Observation]:
        """Where nothing says what is right: calls in a row, against each in a process of its own."""
        try:
            self._referee.start()
            row = [self._referee.call(case, reuse=reuse) for case, reuse in calls]
            for (case, _), said in zip(calls[1:], row[1:], strict=True):
                alone = []
                for _ in range(2):
                    self._referee.start()
                    alone.append(self._referee.call(case))
                if any("raised" in s.values for s in (said, *alone)) or apart(*alone):
                    continue
                if apart(said, alone[0]):
                    yield Observation(kind=Kind.CHEAT, message=_KEEPS, trial=case.trial)
                    return
        except Gone:
            return

    def _one_element(self, case: Case) -> Case | None:
        """The same inputs, but for one element in the middle, and what the reference says to those."""
        leaves = list(case.leaves)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > 2:
                new = leaf.detach().clone(memory_format=torch.preserve_format)
                new[tuple(n // 2 for n in leaf.shape)] += 3.0
                leaves[i] = new
                break
        else:
            return None
        try:
            return Case(case.trial, leaves, self._referee.reference.asked(leaves, case.trial.seed))
        except Exception:  # noqa: BLE001  # the user's function
            return None

    def alone(self, case: Case) -> bool:
        """Whether the kernel is right for this case in a process in which it was not called before."""
        for _ in range(3):  # Once may be luck, for a kernel that is wrong now and then.
            try:
                self._referee.start()
                found = list(observe(case, self._referee.call(case), self._referee.about, frozenset()))
            except Gone:
                return False
            if any(o.kind in _VALUES for o in found):
                return False
        return True

    # What a wrong result looks like

    def patterns(self) -> Iterator[Observation]:
        """Results that no honest computation gives: constants, the inputs themselves, a few rows."""
        wrong = [k for k in self._kept if any(o.kind in _VALUES and not o.exotic for o in k[2])]
        if not wrong:
            return
        case, said, found = wrong[0]
        if self.alone(case):
            yield Observation(
                kind=Kind.CHEAT,
                message="its result depends on earlier calls: it is wrong here, and right in a process of its own",
                trial=case.trial,
            )
            return
        yield from self._constant(wrong)
        for case, said, found in wrong[:8]:
            for observation in found:
                explained = self._lazy(case, said, observation)
                if explained is not None:
                    yield Observation(kind=Kind.CHEAT, message=explained, trial=case.trial, buffer=observation.buffer)
                    return

    def _constant(self, wrong: list[tuple[Case, Said, list[Observation]]]) -> Iterator[Observation]:
        results: dict[str, list[Any]] = {}
        for case, said, _ in wrong:
            mine, own = said.tensors, [case.answer.tensor(n) for n in case.answer.outputs]
            if not mine or len(mine) != len(own) or not mine[0].numel() or mine[0].shape != own[0].shape:
                continue
            if case.trial.sizes is not None or not all(bool(torch.isfinite(t).all()) for t in mine):
                continue  # Too large for its dtype is too large for many inputs.
            for other, reference in results.setdefault(str([t.shape for t in mine]), []):
                same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(mine, other, strict=True))
                if same and not all(_near(a, b) for a, b in zip(own, reference, strict=True)):
                    message = "it gives the same result for different inputs: it computes nothing from them"
                    yield Observation(kind=Kind.CHEAT, message=message, trial=case.trial)
                    return
            results[str([t.shape for t in mine])].append((mine, own))

    def _lazy(self, case: Case, said: Said, observation: Observation) -> str | None:
        outputs = said.tensors
        word, _, number = (observation.buffer or "").partition(" ")
        n = int(number) if word == "output" and number.isdecimal() else len(outputs)
        if observation.kind not in _VALUES or n >= len(outputs):
            return None
        actual, own = outputs[n], case.answer.tensor(f"output {n}")
        if actual.shape != own.shape or actual.numel() < 2:
            return None
        for i, leaf in enumerate(case.leaves):
            alike = isinstance(leaf, torch.Tensor) and leaf.shape == actual.shape and leaf.dtype == actual.dtype
            if alike and torch.equal(leaf, actual):
                return f"it returns its argument {i} as it is"
        rows = actual.shape[0]
        verdict = case.answer.judged(f"output {n}", actual)
        if rows < 4 or verdict.bad is None:
            return None
        bad = verdict.bad.reshape(rows, -1).any(1)
        first = int(bad.long().argmax())
        rest = actual[first:]
        plain = bool((rest == rest.reshape(-1)[0]).all()) or bool(rest.isnan().all())
        if 0 < first <= rows // 2 and bool(bad[first:].float().mean() > 0.9) and plain:
            return f"it computes only the first {first} of {rows} rows, and leaves the others alone"
        return None

    # Conduct

    def conduct(self) -> Iterator[Observation]:
        """Names that it replaced, and what it did besides computing."""
        trial = Trial(seed=self._referee.tried.trials[0]["seed"] if self._referee.tried.trials else 0, given=True)
        about = self._referee.about
        patched = [*about.get("patched", []), *self._referee.patched]
        patched += replaced_by(about["file"]) if about.get("file") else []
        deeds = [*self._referee.deeds, *about.get("deeds", [])]
        for _, said, _ in self._kept:
            patched += said.values["patched"]
            deeds += said.values["deeds"]
        for name in dict.fromkeys(patched):
            message = f"it replaces {name}, which others, such as its judge, rely on"
            yield Observation(kind=Kind.CHEAT, message=message, trial=trial)
        for deed in dict.fromkeys(deeds):
            yield Observation(kind=Kind.CHEAT, message=f"it {deed}: a kernel computes, and nothing else", trial=trial)

    def library(self) -> Iterator[Observation]:
        """A note if the kernel runs the reference's own operators, and nothing else."""
        for case, said, _ in self._kept[:1]:
            own = _computing(self._referee.reference.operators)
            if own and _computing(said.values["operators"]) == own and not said.values.get("launches"):
                names = ", ".join(sorted(own)[:4])
                message = f"it calls the same operators of the library as the reference: {names}"
                yield Observation(kind=Kind.CHEAT, message=message, trial=case.trial, note=True)

    # Precision

    def precision(self, seen: list[Observation]) -> list[Observation]:
        """Tell a loss of precision from wrong values, and return the observations with their kinds."""
        wrong = [o for o in seen if o.kind is Kind.WRONG_VALUES and o.buffer is not None and not o.exotic]
        if not wrong:
            return seen
        if all(o.trial.values in ILL_CONDITIONED and o.relative < _INFINITE for o in wrong):
            return [lost_precision(o, harmless=o.relative < 1e-2) if o in wrong else o for o in seen]
        if not self._only_precision(seen, wrong):
            return seen
        # What is no worse for other layouts is the same loss.
        worst = max(o.relative for o in wrong)
        return [
            lost_precision(o) if o.kind is Kind.WRONG_VALUES and o.relative <= worst and o.buffer else o for o in seen
        ]

    def _only_precision(self, seen: list[Observation], wrong: list[Observation]) -> bool:
        """Whether what is wrong is as small, or as shaped, as a loss of precision makes it."""
        # Large numbers magnify an error, or overflow in half precision: what plain ones show is what it is.
        magnified = ILL_CONDITIONED | (_OVERFLOWING if self._half() else frozenset())
        plain = _plainest(wrong, magnified)
        explained = any(o.arithmetic is not None and o.trial.values in _PLAIN for o in seen)
        only_magnified = all(o.trial.values in magnified for o in plain)
        small = all(o.relative < (5 if only_magnified else 3 if explained else 1) * self._limit() for o in plain)
        if (small or self._as_in_half(plain)) and (explained or not self._smooth(plain[0])):
            return True
        return _finite(wrong) and self._stagnates(plain[0])

    def _as_in_half(self, plain: list[Observation]) -> bool:
        """Whether the kernel's results are ones that the reference might give in half precision, all of it."""
        kept = [(case, said, o) for o in plain for case, said, found in self._kept if o in found][:_FEW]
        return bool(kept) and any(all(self._fits(*each, dtype) for each in kept) for dtype in _SMALL)

    def _fits(self, case: Case, said: Said, o: Observation, dtype: torch.dtype) -> bool:
        leaves = [t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in case.leaves]
        try:
            answer = self._referee.reference.asked(leaves, case.trial.seed)
            name = str(o.buffer)
            return answer.judged(name, said.tensors[answer.outputs.index(name)].to(dtype)).right
        except Exception:  # noqa: BLE001  # the user's function, which may not take this dtype
            return False

    def _half(self) -> bool:
        return any(isinstance(t, torch.Tensor) and t.dtype in _SMALL for t in self._referee.example.leaves)

    def _limit(self) -> float:
        dtypes = [leaf.dtype for leaf in self._referee.example.leaves if isinstance(leaf, torch.Tensor)]
        return max((_SMALL.get(d, 0.02) for d in dtypes), default=0.02)

    def _residual(self, trial: Trial, change: float, signed: bool = False) -> torch.Tensor | None:
        """The errors of the kernel's first result for a trial whose numbers are moved a little."""
        leaves = self._referee.example.make(trial) if not trial.given else list(self._referee.example.leaves)
        generator = torch.Generator().manual_seed(1)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                noise = torch.rand(leaf.shape, generator=generator, dtype=torch.float64) * 2 - 1
                new = leaf.detach().double() * (1 + change * noise)
                new = new * (noise.sign() if signed else 1)
                leaves[i] = new.to(leaf.dtype)
        try:
            case = Case(trial, leaves, self._referee.reference.asked(leaves, trial.seed))
            said = self._referee.call(case)
            exact = case.answer.exact(case.answer.outputs[0]).to(torch.float64)
            actual = said.tensors[0].to(torch.float64)
        except Exception:  # noqa: BLE001  # the user's functions, or no process
            return None
        if actual.shape != exact.shape or bool((exact.isfinite() & ~actual.isfinite()).any()):
            return None
        return (actual - exact).nan_to_num(0, 0, 0).flatten()

    def _smooth(self, o: Observation) -> bool:
        """Whether neighbouring inputs have alike errors."""
        if o.trial.given and self._referee.example.fixed:
            return False
        pairs = []
        for n in range(4):
            trial = replace(o.trial, seed=o.trial.seed + 101 * n, given=False)
            one, two = self._residual(trial, 0.0), self._residual(trial, 2**-7)
            if (
                one is not None
                and two is not None
                and one.shape == two.shape
                and float(one.norm())
                and float(two.norm())
            ):
                pairs.append((one / one.norm(), two / two.norm()))
        if not pairs:
            return True
        return float(torch.stack([(a * b).sum() for a, b in pairs]).mean()) > _SMOOTH

    def _stagnates(self, o: Observation) -> bool:
        """Whether sums of numbers of one sign are wrong, and those of numbers of both signs far less.

        A sum in half precision stops growing when its terms are below its last place.
        """
        example = self._referee.example
        if not self._half() or not any(d.sign for d in example.domains.values()) or (o.trial.given and example.fixed):
            return False
        trial = replace(o.trial, given=False)
        one, two = self._residual(trial, 0.0), self._residual(trial, 0.0, signed=True)
        if one is None or two is None or not float(one.norm()):
            return False
        return float(two.norm()) < 0.1 * float(one.norm())


def lost_precision(o: Observation, *, harmless: bool = False) -> Observation:
    """The observation of wrong values as one of a loss of precision."""
    message = o.message.replace("is wrong in", "has lost precision in")
    return replace(o, kind=Kind.PRECISION_LOSS, message=message, exotic=o.exotic or harmless)


def _numbers(case: Case) -> list[int]:
    """How many elements each tensor has."""
    return [leaf.numel() for leaf in case.leaves if isinstance(leaf, torch.Tensor)]


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=0.05, atol=1e-3, equal_nan=True))


def _computing(operators: Any) -> set[str]:
    return {o for o in operators if not any(w in o for w in (*_VIEWS, *_ALLOCATIONS))}


def _plainest(wrong: list[Observation], magnified: frozenset[str]) -> list[Observation]:
    """Those on plain values; if there are none, those on values that do not magnify an error; else all."""
    plain = [o for o in wrong if o.trial.values in _PLAIN]
    return plain or [o for o in wrong if o.trial.values not in magnified] or wrong


def _finite(wrong: list[Observation]) -> bool:
    return all(o.relative < _INFINITE or o.trial.values in _OVERFLOWING | ILL_CONDITIONED for o in wrong)
