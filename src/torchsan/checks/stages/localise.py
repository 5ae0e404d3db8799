"""From a call whose results are not those of the program, to the stage graph where they became others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.fx

from torchsan.checks.stages.aliasing import TracedEffects, lost_writes
from torchsan.checks.stages.divergence import SeenOperators, Signatures, where_they_part
from torchsan.checks.stages.findings import (
    Difference,
    Rerun,
    apart_in_float64,
    pair,
    plainly_other,
    same,
    structural,
    wrong,
    wrong_in_float64,
)
from torchsan.checks.stages.layouts import SavedLooks, maybe_resaved, resaved, restrided
from torchsan.checks.stages.plan import Runner, Seen, StageGraph, first_stage_graph, later_stage_graphs, output_nodes
from torchsan.checks.stages.storages import Reordered
from torchsan.errors import in_one_line
from torchsan.records import Direction, Stage
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.aside import aside
from torchsan.reference.calls import LastOperator, RepeatableCall, Results, named_outputs
from torchsan.reference.distances import as_near_as_eager
from torchsan.reference.flips import Flip, find_flip
from torchsan.reference.judge import Outcome
from torchsan.torch_internals.compile_stages import CompileStages

log = logging.getLogger(__name__)

_OVERLAP = "refer to a single memory location"
"""From PyTorch's message about an operator that would overwrite what it reads."""


T = TypeVar("T")

_Key = tuple[int, Arithmetic | None, int, bool, frozenset[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first stage graph that differs from the program, and in what."""

    graph: StageGraph
    differences: tuple[Difference, ...]
    arithmetic: Arithmetic | None
    """In which it does; None for the program's own, as it is."""


class Search:
    """One call, run on any stage graph in any arithmetic. Each run is made once."""

    def __init__(
        self,
        stages: CompileStages,
        call: RepeatableCall,
        cotangents: Mapping[str, torch.Tensor] | None,
        skipped: Callable[[str], None],
    ) -> None:
        """With `cotangents` it is about the gradients of the call. `skipped` is told what cannot be run."""
        self.call = call
        self.backward = cotangents is not None
        self._cotangents = cotangents
        self._skipped = skipped
        self._top = first_stage_graph(stages)
        self._graphs = later_stage_graphs(stages, backward=self.backward)
        self.overlapping: list[StageGraph] = []
        """The graphs that PyTorch refuses to run, because they copy a tensor onto a part of itself."""
        self._runs: dict[_Key, Results | Exception] = {}

    @property
    def reference(self) -> Results:
        """Dynamo's graph, in the program's dtypes, with the program's random numbers."""
        return self._run(self._top, None)

    @property
    def refusal(self) -> Exception | None:
        """What Dynamo's graph raises on these inputs, if it does."""
        try:
            _ = self.reference
        except Exception as e:  # noqa: BLE001  # whatever an operator makes of these arguments
            return e
        return None

    @property
    def exact(self) -> Results | None:
        """Dynamo's graph in float64, if it can be run so."""
        return self._try(self._top, Arithmetic.EXACT)

    def wrong(self, actual: Results, names: list[str]) -> list[Difference]:
        """Those of the named results of the compiled program that rounding cannot explain."""
        if self._as_it_is:
            return plainly_other(actual, self.reference, names)
        return wrong(actual, names, self._reruns(self._top, names, own_random=True)) if names else []

    def culprit(self) -> Culprit | None:
        """Return the first graph that does not mean what the one above it does; None if the last is right.

        In float64, if the program can be run so.
        """
        if self._as_it_is:
            return self._plain_culprit()
        return self._culprit(Arithmetic.EAGER if self.exact is None else Arithmetic.EXACT, None)

    @property
    def _as_it_is(self) -> bool:
        """Whether it can be run in no arithmetic but its own, as where operators take functions."""
        return not self.reference.draws and self.exact is None and self._try(self._top, Arithmetic.EAGER) is None

    def _plain_culprit(self) -> Culprit | None:
        for graph in self._graphs:
            try:
                results = self._run(graph, None)
            except Exception:  # noqa: BLE001  # what cannot be run proves nothing
                continue
            found = structural(results, self.reference)
            found += plainly_other(results, self.reference, self.reference.tensors)
            if found:
                return Culprit(graph=graph, differences=tuple(found), arithmetic=None)
        return None

    def less_precise(self, names: list[str]) -> Culprit | None:
        """Return the first graph that gives these results less precisely than the one above it; None if none does.

        What a step does to the precision only shows in the program's own dtypes. If the graphs can be run in float64,
        they mean the same there: rounding explains it, then, as in a formula that cancels.
        """
        found = None if self._as_it_is else self._culprit(Arithmetic.EAGER, frozenset(names))
        differences = tuple(d.explained_by_rounding() for d in found.differences) if found is not None else ()
        return found if found is None or self.exact is None else replace(found, differences=differences)

    def _culprit(self, arithmetic: Arithmetic, names: frozenset[str] | None) -> Culprit | None:
        """The same in an arithmetic, by the named results; None for all."""
        graphs = self._graphs
        top = self._top
        last = next((g for g in reversed(graphs) if self._try(g, arithmetic) is not None), None)
        if last is None:
            return None
        while self._differences(top, last, arithmetic, names):
            found = self._first(top, graphs, arithmetic, names)
            if found is None or not self._inconclusive(top, found.graph, arithmetic):
                return found
            # Random numbers that were drawn in another order make it another program from here on.
            self._skipped("a step draws random numbers in another order; only what comes after it is compared")
            graphs = graphs[graphs.index(found.graph) + 1 :]
            top = found.graph
            if not graphs:
                return None
        # As large as all that the program returns or differentiates, and not asked for again.
        self._runs.pop(_key(last, arithmetic), None)
        return None

    def not_run_before(self, culprit: Culprit) -> list[StageGraph]:
        """The graphs directly before the culprit that cannot be run outside of the compiler."""
        found: list[StageGraph] = []
        for graph in reversed(self._graphs[: self._graphs.index(culprit.graph)]):
            if not isinstance(self._runs.get(_key(graph, culprit.arithmetic)), Exception):
                break
            found.insert(0, graph)
        return found

    def blamed(self, culprit: Culprit) -> list[torch.fx.Node]:
        """The nodes of the culprit that differ, where the graph before has nothing to compare by name."""
        if culprit.graph.previous is not None:
            return []
        return self._aside(partial(self._parted, culprit))

    def _parted(self, culprit: Culprit) -> list[torch.fx.Node]:
        upper, lower, operators = Signatures(), Signatures(), SeenOperators()
        try:
            # The gradients of Dynamo's graph have no nodes there, only operators.
            self._execute(self._top, culprit.arithmetic, seen=upper.note, inside=operators)
            self._execute(culprit.graph, culprit.arithmetic, seen=lower.note)
        except Exception:  # a finding without its nodes is better than none
            log.debug("could not narrow down", exc_info=True)
            return []
        return where_they_part(upper, operators, lower)

    def relaid(self, actual: Results) -> Culprit | None:
        """The first pass after which a result, or what is saved for backward, is laid out or typed in another way.

        Only where the compiled program shows it: strides that a pass changes and that are put right again are nobody's.
        """
        if not self.backward and restrided(actual, self.reference):
            for graph in self._graphs:
                results = self._try(graph, Arithmetic.EAGER)
                found = restrided(results, self.reference) if results is not None else []
                if found:
                    return self._of_pass(graph, found)
        for before, graph in itertools.pairwise(self._graphs):
            if self.backward or graph.direction is not Direction.FORWARD or not maybe_resaved(graph, before):
                continue
            found = list(resaved(*(self._aside(partial(self._looks, g)) for g in (before, graph))))
            if found:
                return self._of_pass(graph, found)
        return None

    def _of_pass(self, graph: StageGraph, found: list[Difference]) -> Culprit | None:
        """Decompositions are known to lay results out in other ways than the operator does; a pass has no excuse."""
        made = Culprit(graph=graph, differences=tuple(found), arithmetic=Arithmetic.EAGER)
        return made if graph.previous is not None else None

    def _looks(self, graph: StageGraph) -> SavedLooks:
        looks = SavedLooks(graph)
        self._execute(graph, None, seen=looks.ran)
        return looks

    def lost_writes(self, culprit: Culprit) -> tuple[tuple[Reordered, ...], bool]:
        """The writes of the program that no longer reach a read in AOTAutograd's graph.

        And whether that is because inputs overlap, which they may not have done when it was compiled.
        """
        names = {f"input {i}": n for i, n in enumerate(self.call.names)}
        actual, expected = (self._run(g, culprit.arithmetic) for g in (culprit.graph, self._top))
        differing = [i for i, n in names.items() if not _equal(actual, expected, f"{n} after the call")]
        return self._aside(partial(self._traced, culprit, names, differing))

    def _traced(
        self, culprit: Culprit, names: dict[str, str], differing: list[str]
    ) -> tuple[tuple[Reordered, ...], bool]:
        traced = TracedEffects()
        try:
            with self._top.opened(traced.ran) as run, torch.no_grad():
                self.call.run(partial(traced.run, run), None)
            graph = culprit.graph.changed.graph
            return tuple(lost_writes(traced, graph, names, differing)), traced.overlapping_inputs
        except Exception:  # a finding without its statements is better than none
            log.debug("could not follow the writes", exc_info=True)
            return (), False

    def accepting(self, error: str) -> tuple[StageGraph | None, list[torch.fx.Node]]:
        """The first graph that runs where Dynamo's raises this error, and what stands there for what raises it.

        That are the nodes that the operator became, or those from its line. If no graph runs, None and the node of the
        last one that raises it.
        """
        last = LastOperator()
        refusing = self._refusing(self._top, error, last)
        trace = refusing[0].meta.get("stack_trace") if refusing else None
        for graph in self._graphs:
            nodes = self._refusing(graph, error)
            if nodes is None:
                calls = [n for n in graph.changed.graph.nodes if n.op.startswith("call_")]
                became = [n for n in calls if str(n.meta.get("original_aten", "")) == str(last.called)]
                return graph, became or [n for n in calls if n.meta.get("stack_trace") == trace] or refusing or []
            refusing = nodes or refusing
        return None, refusing or []

    def _refusing(self, graph: StageGraph, error: str, last: LastOperator | None = None) -> list[torch.fx.Node] | None:
        """The node of a graph that raises this error; none if it raises another, None if it raises nothing."""
        ran: set[torch.fx.Node] = set()

        def run() -> list[torch.fx.Node] | None:
            try:
                with graph.opened(lambda node, _: ran.add(node)) as opened:
                    self.call.run(partial(_inside, last or nullcontext(), opened), None)
            except Exception as e:  # noqa: BLE001  # which one is what is asked
                left = [n for n in graph.changed.graph.nodes if n.op.startswith("call_") and n not in ran]
                return left[:1] if in_one_line(e) == error else []
            return None

        return self._aside(run)

    def computing(self, name: str) -> list[torch.fx.Node]:
        """The nodes of the last graph that came from the line which computes a result; all if that is not known."""
        last = self._graphs[-1] if self._graphs else self._top
        calls = [n for n in last.changed.graph.nodes if n.op.startswith("call_")]
        outputs = named_outputs(output_nodes(self._top.changed.graph))
        trace = getattr(outputs.get(name), "meta", {}).get("stack_trace")
        return [n for n in calls if trace is not None and n.meta.get("stack_trace") == trace] or calls

    def flip(self, where: torch.Tensor) -> Flip | None:
        """The first operator of the last graph that goes either way as numbers are rounded, if there is one.

        `where` are the elements of a result that are others than eager's.
        """
        last = self._graphs[-1] if self._graphs else self._top

        def run(arithmetic: Arithmetic, seed: int, see: Seen) -> Results:
            return self._execute(last, arithmetic, seed, seen=see)

        return None if self._as_it_is else self._aside(partial(find_flip, run, where))

    def repeats(self) -> bool:
        """Whether the program does the same twice: what is not PyTorch's own may count, or draw from what it likes."""
        if not self.call.users_code:
            return True
        return aside(lambda: same(self._execute(self._top, None), self._execute(self._top, None)))

    def _aside(self, compute: Callable[[], T]) -> T:
        """Compute what runs graphs and looks at their nodes, where their results alone would not do."""
        if not self.call.users_code:
            return compute()
        graphs = [s.graph for g in (self._top, *self._graphs) for s in g.snapshots()]
        return aside(compute, known=[n for graph in graphs for n in graph.nodes])

    def _reruns(self, graph: StageGraph, names: Iterable[str], *, own_random: bool, constant: bool = False) -> Rerun:
        """Runs of a graph, as `wrong` asks for them; with the program's random numbers, or those all graphs share.

        One run answers for all of the named results, and nothing else of it is kept.
        """
        wanted = frozenset(names)

        def rerun(arithmetic: Arithmetic, seed: int) -> Results:
            if arithmetic is Arithmetic.EAGER:
                return self._run(graph, None if own_random else arithmetic, seed, constant=constant)
            if arithmetic is not Arithmetic.EXACT:
                return self._run(graph, arithmetic, seed, constant=constant, wanted=wanted)
            if self.exact is None:
                raise Unavailable("the program cannot be computed in float64")
            return self._run(graph, arithmetic, seed, constant=constant)

        return rerun

    def _first(
        self, top: StageGraph, graphs: list[StageGraph], arithmetic: Arithmetic, names: frozenset[str] | None
    ) -> Culprit | None:
        for graph in graphs:
            if self._try(graph, arithmetic) is None:
                continue
            differences = self._differences(top, graph, arithmetic, names)
            if differences:
                return Culprit(graph=graph, differences=tuple(differences), arithmetic=arithmetic)
            self._runs.pop(_key(graph, arithmetic), None)
        return None

    def _differences(
        self,
        top: StageGraph,
        graph: StageGraph,
        arithmetic: Arithmetic,
        names: frozenset[str] | None,
        *,
        constant: bool = False,
    ) -> list[Difference]:
        expected, actual = (self._run(g, arithmetic, constant=constant) for g in (top, graph))
        found = structural(actual, expected, dtypes=arithmetic is not Arithmetic.EXACT)
        if arithmetic is Arithmetic.EXACT:
            double = all(_is_double(each.changed.graph) for each in (top, graph))
            apart = [] if found else apart_in_float64(actual, expected, double=double)
            reruns = self._reruns(top, apart, own_random=False, constant=constant)
            return found or wrong_in_float64(actual, expected, apart, reruns, double=double)
        exact = self.exact if names is not None else None
        doubtful = [
            n
            for n in expected.tensors
            if (names is None or n in names)
            and not _equal(actual, expected, n)
            and not (exact is not None and near_as_a_whole(actual, expected, exact, n))
        ]
        reruns = self._reruns(top, doubtful, own_random=False, constant=constant)
        return found + [d for d in wrong(actual, doubtful, reruns) if _settled(d)]

    def _inconclusive(self, top: StageGraph, graph: StageGraph, arithmetic: Arithmetic) -> bool:
        """Whether the two differ only in which random number goes where: with equal ones they are the same.

        From the partition on the numbers are where they are, and drawing them twice is a fault.
        """
        settled = graph.changed.pass_ == "partition" or graph.stage is Stage.POST_GRAD_PASSES
        if not self.reference.draws or settled:
            return False
        try:
            return not self._differences(top, graph, arithmetic, None, constant=True)
        except Exception:  # noqa: BLE001  # what cannot be run proves nothing
            return True

    def _try(self, graph: StageGraph, arithmetic: Arithmetic) -> Results | None:
        """What the graph gives; None, and said once, if it cannot be run outside the compiler."""
        try:
            return self._run(graph, arithmetic)
        except Exception as e:  # whatever an operator makes of these arguments
            log.debug("cannot run %s in %s", graph.changed, arithmetic, exc_info=True)
            if _OVERLAP in str(e):
                self.overlapping.append(graph)
            if graph is not self._top:
                reason = str(e) if isinstance(e, Unavailable) else in_one_line(e)
                self._skipped(f"the graph after {graph.changed.label or graph.stage} cannot be run: {reason}")
            return None

    def _run(
        self,
        graph: StageGraph,
        arithmetic: Arithmetic | None,
        seed: int = 0,
        *,
        constant: bool = False,
        wanted: frozenset[str] | None = None,
    ) -> Results:
        """What a graph gives; only what is `wanted` of it, unless that is None."""
        key = _key(graph, arithmetic, seed, constant=constant, wanted=wanted)
        if key not in self._runs:
            try:
                found = self._execute(graph, arithmetic, seed, constant=constant)
                if wanted is not None:
                    found = replace(found, tensors={n: t for n, t in found.tensors.items() if n in wanted})
                self._runs[key] = found
            except Exception as e:  # noqa: BLE001  # raised below, now and whenever it is asked for again
                self._runs[key] = e
        result = self._runs[key]
        if isinstance(result, Exception):
            raise result
        return result

    def _execute(
        self,
        graph: StageGraph,
        arithmetic: Arithmetic | None,
        seed: int = 0,
        *,
        constant: bool = False,
        seen: Seen | None = None,
        inside: AbstractContextManager[Any] | None = None,
    ) -> Results:
        with graph.opened(seen) as run:
            return self.call.run(
                run, arithmetic, seed=seed, constant=constant, cotangents=self._cotangents, inside=inside
            )


def _inside(mode: AbstractContextManager[Any], run: Runner, args: list[Any]) -> Any:
    with mode:
        return run(args)


def _key(
    graph: StageGraph,
    arithmetic: Arithmetic | None,
    seed: int = 0,
    *,
    constant: bool = False,
    wanted: frozenset[str] | None = None,
) -> _Key:
    return id(graph), arithmetic, seed, constant, wanted


def near_as_a_whole(actual: Results, eager: Results, exact: Results, name: str) -> bool:
    """Whether a result of one run lies about as near to that of float64 as the result of eager's does."""
    a, e = pair(actual, eager, name)
    c = pair(exact, eager, name)[0]
    return a is not None and e is not None and c is not None and as_near_as_eager(a, e, c)


def _settled(difference: Difference) -> bool:
    return difference.judgement is not None and difference.judgement.outcome is not Outcome.UNDECIDED


def _equal(a: Results, b: Results, name: str) -> bool:
    x, y = a.tensors.get(name), b.tensors.get(name)
    return x is not None and y is not None and x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def _is_double(graph: torch.fx.Graph) -> bool:
    """Whether all real numbers of a graph are in float64, so that nothing in it is rounded to float32."""
    metas = [node.meta.get("val", node.meta.get("example_value")) for node in graph.nodes]
    dtypes = {m.dtype for m in metas if isinstance(m, torch.Tensor) and m.is_floating_point()}
    return dtypes == {torch.float64}
