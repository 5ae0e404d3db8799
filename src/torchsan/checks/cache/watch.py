"""Runs cached code and fresh code on the inputs of one call, and judges what the cached code gave."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from torchsan.checks.cache.exhibit import no_exhibit
from torchsan.checks.cache.findings import stale
from torchsan.checks.collector import Collector
from torchsan.checks.stages.findings import Difference, structural, wrong
from torchsan.checks.stages.plan import StageGraph
from torchsan.checks.stages.twin_findings import near
from torchsan.errors import FindingsError, in_one_line
from torchsan.records import Finding, Kind
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import RepeatableCall, Results, unsupported
from torchsan.reference.judge import Outcome, is_another
from torchsan.torch_internals.caches import CachedCode
from torchsan.torch_internals.compile_stages import CompileStages
from torchsan.torch_internals.operators import is_pytorchs, outside_modes
from torchsan.watch.observer import not_checked

log = logging.getLogger(__name__)


class CacheWatch:
    """One graph whose cached code is not that of a fresh compile. The program gets what the cached code gives."""

    def __init__(self, collector: Collector, found: CachedCode, calls: int | None) -> None:
        self._collector = collector
        self._found = found
        self._left = calls
        self._fresh_is_wrong = False
        self._names = [n.name for n in found.graph.graph.nodes if n.op == "placeholder"]

    def __call__(self, args: list[Any]) -> Any:
        """Make a call of the program's."""
        if self._left == 0:
            self._found.watch = None
            return self._found.run_alone(args)
        self._left = None if self._left is None else self._left - 1
        try:
            reason = unsupported(args)
            if reason is not None:
                raise Unavailable(reason)
            # Fresh code calls them as well, and runs in no forked child: it is compiled for several threads.
            if not all(is_pytorchs(n.target) for n in self._found.graph.graph.nodes if n.op == "call_function"):
                raise Unavailable("it calls operators that are not PyTorch's own, which the program would notice")
            call = RepeatableCall(args, self._names, frozenset(range(len(args))))
            fresh = call.run(self._found.fresh, None)
            painted = call.run(self._found.painted, None)
        except FindingsError:
            raise
        except Exception as e:  # noqa: BLE001  # what cannot be run again cannot be checked
            self._failed(e)
            return self._found.run_alone(args)
        given = list(args)
        outputs = self._found.cached(args)
        try:
            with outside_modes(), torch.no_grad():
                self._judge(call, (call.results(outputs, given), painted), fresh)
        except FindingsError:
            raise
        except Exception as e:  # noqa: BLE001  # a check that fails ends the check, never the user's job
            self._failed(e)
        return outputs

    def _failed(self, error: Exception) -> None:
        log.debug("cache check failed", exc_info=True)
        self._found.watch = None
        not_checked(
            self._collector.recorder,
            f"cached code {self._found.key[:12]}",
            f"could not be compared: {in_one_line(error)}",
        )

    def _judge(self, call: RepeatableCall, runs: tuple[Results, ...], fresh: Results) -> None:
        """Judge what the program got, and what it would have got in memory without an earlier result in it."""
        differences: list[Difference] = []
        for actual in runs:
            differences = differences or self._differences(call, actual, fresh)
        finding = stale(self._found, differences, fresh_is_wrong=self._fresh_is_wrong)
        if differences:
            self._left = 0
        self._collector.add((self._found.key, self._found.direction), finding, no_exhibit, merge=_graver)

    def _differences(self, call: RepeatableCall, actual: Results, fresh: Results) -> list[Difference]:
        differences = structural(actual, fresh)
        apart = {d.name for d in differences}
        doubtful = [
            name
            for name, e in fresh.tensors.items()
            if name not in apart and e is not None and (a := actual.tensors.get(name)) is not None and not near(a, e)
        ]
        return differences + (self._wrong(call, actual, fresh, doubtful) if doubtful else [])

    def _wrong(self, call: RepeatableCall, actual: Results, fresh: Results, names: list[str]) -> list[Difference]:
        """Those of the results that are none that the graph could have given."""
        stages = StageGraph(
            changed=self._found.graph,
            previous=None,
            direction=self._found.direction,
            stages=CompileStages("inductor"),
        )
        with stages.opened() as run:
            known: dict[Any, Results] = {}

            def rerun(arithmetic: Arithmetic, seed: int) -> Results:
                if (arithmetic, seed) not in known:
                    known[arithmetic, seed] = call.run(run, arithmetic, seed=seed)
                return known[arithmetic, seed]

            try:
                random = rerun(Arithmetic.EAGER, 0).draws > 0
            except Exception:  # noqa: BLE001  # a graph that only the compiler can run
                random = True
            if random:  # Then the fresh code, which has drawn the same numbers, is what there is.
                return [_another(n) for n in names if is_another(_t(actual, n), _t(fresh, n))]
            found = _plainly_wrong(wrong(actual, names, rerun))
            self._fresh_is_wrong |= not found and bool(_plainly_wrong(wrong(fresh, names, rerun)))
        return found


def _t(results: Results, name: str) -> torch.Tensor:
    found = results.tensors[name]
    assert found is not None
    return found


def _plainly_wrong(judged: list[Difference]) -> list[Difference]:
    return [d for d in judged if d.judgement and d.judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE)]


def _another(name: str) -> Difference:
    return Difference(name=name, kind=Kind.WRONG_VALUES, message=f"{name} is another tensor than with fresh code")


def _graver(known: Finding, new: Finding) -> Finding:
    """A later call may show what the first did not."""
    return replace(new, id=known.id) if new.severity.rank > known.severity.rank else known
