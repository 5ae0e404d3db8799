"""From a call whose results are not those of the program, to the rung where they became others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.compare import Difference, Noise, structural, suspects, wrong
from torchsan.checks.stages.stage_graphs import StageGraph, first_stage_graph, later_stage_graphs
from torchsan.records import Stage
from torchsan.reference.arithmetic import Unsupported
from torchsan.reference.execute import Circumstances, Results, execute
from torchsan.reference.inputs import Inputs
from torchsan.reference.judge import Outcome
from torchsan.reference.replay import Arithmetic
from torchsan.torch_internals.compile_stages import CompileStages

log = logging.getLogger(__name__)


class Signatures:
    """What each node of a graph computed, in three numbers. Taken as it runs, because values may be overwritten."""

    def __init__(self) -> None:
        self.of: dict[torch.fx.Node, tuple[float, float, float]] = {}

    def __call__(self, node: torch.fx.Node, value: Any) -> None:
        """Note the value of a node; anything but a tensor is left out."""
        if node.op.startswith("call_") and isinstance(value, torch.Tensor) and value.numel():
            wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
            self.of[node] = (float(wide.numel()), float(wide.abs().sum()), float(abs(wide.sum())))


def first_divergence(upper: Signatures, lower: Signatures) -> list[torch.fx.Node]:
    """The nodes below that came from the first node above whose value is nowhere below; empty if there is none."""
    for node, signature in upper.of.items():
        if not any(_alike(signature, other) for other in lower.of.values()):
            trace = node.meta.get("stack_trace")
            return [n for n in lower.of if n.meta.get("stack_trace") == trace]
    return []


def _alike(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(x == y or abs(x - y) <= 1e-9 * max(abs(x), abs(y), a[1]) for x, y in zip(a, b, strict=True))


_Key = tuple[int, Arithmetic | None, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first rung that differs from the program, and in what."""

    rung: StageGraph
    differences: tuple[Difference, ...]
    arithmetic: Arithmetic


class Search:
    """One call, run on any rung in any arithmetic. Each run is made once."""

    def __init__(
        self,
        ladder: CompileStages,
        inputs: Inputs,
        names: list[str],
        circumstances: Circumstances,
        cotangents: Mapping[str, torch.Tensor] | None,
        skipped: Callable[[str], None],
    ) -> None:
        self._inputs = inputs
        self._names = names
        self._circumstances = circumstances
        self._cotangents = cotangents
        self._skipped = skipped
        self._top = first_stage_graph(ladder)
        self._rungs = later_stage_graphs(ladder, backward=cotangents is not None)
        self._runs: dict[_Key, Results] = {}
        self._failed: dict[_Key, Exception] = {}

    @property
    def inputs(self) -> Inputs:
        """What the call was given."""
        return self._inputs

    @property
    def circumstances(self) -> Circumstances:
        """What else it depended on."""
        return self._circumstances

    @property
    def backward(self) -> bool:
        """Whether it is about gradients."""
        return self._cotangents is not None

    def reference(self, *, own_random: bool) -> Results:
        """Dynamo's graph, in the program's dtypes; with the program's random numbers, or those all rungs share."""
        return self._run(self._top, None if own_random else Arithmetic.EAGER)

    def culprit(self, arithmetic: Arithmetic | None = None) -> Culprit | None:
        """Return the first graph that does not mean what the one above it does; None if the last is right.

        In float64 unless told otherwise: what a step does to the precision only shows in the program's own dtypes.
        """
        rungs = self._rungs
        arithmetic = arithmetic or self._arithmetic()
        top = self._top
        last = next((r for r in reversed(rungs) if self._try(r, arithmetic) is not None), None)
        if last is None:
            return None
        while self._differences(top, last, arithmetic):
            found = self._first(top, rungs, arithmetic)
            if found is None or not self._inconclusive(top, found.rung, arithmetic):
                return found
            # Random numbers that were drawn in another order make it another program from here on.
            self._skipped("random numbers are drawn in another order from here on; compared below that only")
            rungs = rungs[rungs.index(found.rung) + 1 :]
            top = found.rung
            if not rungs:
                return None
        return None

    @property
    def draws(self) -> int:
        """How many random numbers Dynamo's graph draws; 0 for a program that is not random."""
        return self.reference(own_random=True).draws

    def blamed(self, culprit: Culprit) -> list[torch.fx.Node]:
        """The nodes of the culprit that differ, where the graph before has nothing to compare by name."""
        if culprit.rung.previous is not None:
            return []
        upper, lower = Signatures(), Signatures()
        try:
            for rung, seen in ((self._top, upper), (culprit.rung, lower)):
                self._execute(rung, culprit.arithmetic, seen=seen)
        except Exception:  # a finding without its nodes is better than none
            log.debug("could not narrow down", exc_info=True)
        return first_divergence(upper, lower)

    def exact(self) -> Results | None:
        """Dynamo's graph in float64, if it can be run so."""
        return self._run(self._top, Arithmetic.EXACT) if self._arithmetic() is Arithmetic.EXACT else None

    def noise(self, rung: StageGraph | None = None, *, own_random: bool = False) -> Noise:
        """What rounding can do to the results of a rung, Dynamo's graph if it is None."""
        of = rung or self._top
        exact = self._run(of, Arithmetic.EXACT) if self._arithmetic() is Arithmetic.EXACT else None

        def nudged(count: int) -> Sequence[Results]:
            return [self._run(of, Arithmetic.NUDGED, seed) for seed in range(1, count + 1)]

        return Noise(eager=self._run(of, None if own_random else Arithmetic.EAGER), exact=exact, nudged=nudged)

    def _first(self, top: StageGraph, rungs: list[StageGraph], arithmetic: Arithmetic) -> Culprit | None:
        for rung in rungs:
            if self._try(rung, arithmetic) is None:
                continue
            differences = self._differences(top, rung, arithmetic)
            if differences:
                return Culprit(rung=rung, differences=tuple(differences), arithmetic=arithmetic)
        return None

    def _differences(self, top: StageGraph, rung: StageGraph, arithmetic: Arithmetic) -> list[Difference]:
        expected, actual = self._run(top, arithmetic), self._run(rung, arithmetic)
        found = structural(actual, expected, dtypes=arithmetic is not Arithmetic.EXACT)
        if arithmetic is Arithmetic.EXACT and not found:
            names = suspects(actual, expected)
        else:
            names = [n for n in expected.tensors if not _equal(actual, expected, n)]
        judged = wrong(actual, names, self.noise(top)) if names else []
        # In float64 there is no rounding to speak of: what lies outside the program's own is a difference in meaning.
        return found + [d for d in judged if arithmetic is Arithmetic.EXACT or _settled(d)]

    def _inconclusive(self, top: StageGraph, rung: StageGraph, arithmetic: Arithmetic) -> bool:
        """Whether the two differ only in which random number goes where: with loaded dice they are the same.

        From the partition on the numbers are where they are, and drawing them twice is a fault.
        """
        settled = rung.changed.pass_ == "partition" or rung.stage is Stage.POST_GRAD_PASSES
        if not self.draws or settled:
            return False
        expected = self._run(top, arithmetic, loaded=True)
        try:
            actual = self._run(rung, arithmetic, loaded=True)
        except Exception:  # noqa: BLE001  # what cannot be run proves nothing
            return True
        return not structural(actual, expected, dtypes=False) and not suspects(actual, expected)

    def _arithmetic(self) -> Arithmetic:
        """Float64 where the program has a meaning in it."""
        return Arithmetic.EXACT if self._try(self._top, Arithmetic.EXACT) is not None else Arithmetic.EAGER

    def _try(self, rung: StageGraph, arithmetic: Arithmetic) -> Results | None:
        try:
            return self._run(rung, arithmetic)
        except Unsupported as e:
            log.debug("no %s run of %s: %s", arithmetic, rung.changed.label, e)
            if rung is not self._top:
                self._skipped(f"the graph after {rung.changed.label or rung.stage} cannot be run: {e}")
        except Exception as e:  # what cannot be run outside the compiler is no rung
            log.debug("cannot run %s in %s", rung.changed, arithmetic, exc_info=True)
            if rung is not self._top:
                self._skipped(f"the graph after {rung.changed.label or rung.stage} cannot be run: {_short(e)}")
        return None

    def _run(self, rung: StageGraph, arithmetic: Arithmetic | None, seed: int = 0, *, loaded: bool = False) -> Results:
        key = (id(rung), arithmetic, seed, loaded)
        if key in self._failed:
            raise self._failed[key]
        if key not in self._runs:
            try:
                self._runs[key] = self._execute(rung, arithmetic, seed, loaded=loaded)
            except Exception as e:
                self._failed[key] = e
                raise
        return self._runs[key]

    def _execute(
        self,
        rung: StageGraph,
        arithmetic: Arithmetic | None,
        seed: int = 0,
        *,
        loaded: bool = False,
        seen: Signatures | None = None,
    ) -> Results:
        with rung.opened(seen) as run:
            return execute(
                run,
                self._inputs,
                self._names,
                self._circumstances,
                arithmetic,
                seed=seed,
                loaded=loaded,
                cotangents=self._cotangents,
            )


def _settled(difference: Difference) -> bool:
    return difference.judgement is not None and difference.judgement.outcome is not Outcome.UNDECIDED


def _equal(a: Results, b: Results, name: str) -> bool:
    x, y = a.tensors.get(name), b.tensors.get(name)
    return x is not None and y is not None and x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
