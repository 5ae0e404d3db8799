"""Looks on while a compiled function is called, and judges what it gave."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.collector import Build
from torchsan.checks.stages.captured import CallUnderWay
from torchsan.checks.stages.exhibit import exhibit_of_call, look_at
from torchsan.checks.stages.findings import (
    Difference,
    because_of,
    difference_finding,
    flip_note,
    following,
    pair,
    plainly_other,
    same,
    stage_finding,
    structural,
)
from torchsan.checks.stages.gradients import Backward
from torchsan.checks.stages.localise import Culprit, Search
from torchsan.checks.stages.order import EffectOrder, order_finding, unconfirmed
from torchsan.checks.stages.plan import calls_users_code, launches_users_kernels, maybe_mutated
from torchsan.checks.stages.refusals import no_result, refusal_finding
from torchsan.checks.stages.storages import Reordered
from torchsan.errors import FindingsError, in_one_line
from torchsan.recording.flight import Flight
from torchsan.recording.spent import spent
from torchsan.records import Direction, Finding, Given, GraphRef, Kind, Severity, Stage
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import RepeatableCall, Results, fingerprint, unsupported
from torchsan.reference.distances import as_near_as_eager, as_near_as_usual, relative_error
from torchsan.reference.judge import Outcome, agrees, is_another
from torchsan.torch_internals.compile_stages import CompileStages
from torchsan.torch_internals.operators import outside_modes
from torchsan.watch.pace import Attention

log = logging.getLogger(__name__)


class StagesWatch:
    """One compiled function: checks its first calls, and each whose inputs look like none before.

    `report` takes findings, `skipped` what could not be checked and why. `kernels_elsewhere` says whether something
    else looks at the compiled code itself, `blamed` which error that has found in it, `noted` whether it has noted
    a choice of a graph's that rounding decided. `kernel_of` gives the kernel that computes a node of a graph.
    `launches` are reads and writes that changed places in the generated program. `flight` is told when a graph is run,
    `eager_gradients` what it gives for parameters, if the compiled code gives the same; `refusals` which calls it does
    not run and the compiled code does, `captured` that it ran.
    """

    def __init__(
        self,
        stages: CompileStages,
        attention: Attention,
        *,
        refs: Mapping[Direction, GraphRef],
        report: Callable[[Finding, Build], None],
        skipped: Callable[[str], None],
        checked: Callable[[Direction, list[str]], None],
        kernels_elsewhere: bool,
        blamed: Callable[[], str | None],
        kernel_of: Callable[[GraphRef | None, str], str | None],
        flip: Callable[[], Finding | None],
        launches: Mapping[Direction, tuple[Reordered, ...]],
        unchecked: Callable[[str], None],
        flight: Flight | None,
        call: CallUnderWay,
    ) -> None:
        self.attention = attention
        self._stages = stages
        self._flight = flight
        self._refs = refs
        self._report = report
        self.skipped = skipped
        self._checked = checked
        self._kernels_elsewhere = kernels_elsewhere
        self._blamed = blamed
        self._kernel_of = kernel_of
        self._flip = flip
        self._launches = launches
        self._order = EffectOrder(stages)
        self._unchecked = unchecked
        self._call = call
        self._users_kernels = launches_users_kernels(stages)
        self._users_code = calls_users_code(stages)
        graph = stages.dynamo.snapshots[0].graph
        self._mutated = maybe_mutated(graph)
        self._names = [_readable(n.name) for n in graph.nodes if n.op == "placeholder"]
        self._raw_names = [f"input {n.name}" for n in graph.nodes if n.op == "placeholder"]
        self._reported: set[tuple[Stage | None, str | None]] = set()
        self._noted: set[tuple[Stage, str | None]] = set()
        self._wrong = False
        self._first: tuple[Given, ...] | None = None
        """What the inputs of the first call looked like, for which the graph was compiled."""
        self._later = False
        self._usual: dict[tuple[bool, tuple[Any, ...]], dict[str, float]] = {}
        """How far eager lay from float64 in what rounding explains: results, or gradients, for each kind of inputs."""

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Call the compiled function for the program, and check the call if it is one to check."""
        compiled = self._stages.compiled
        assert compiled is not None
        number = self.attention.count
        if self._wrong:
            self.attention.rest()
            return compiled(*args)
        start = time.perf_counter()
        wanted = self.attention.wants(partial(_look, args))
        looked = time.perf_counter()
        refused: list[tuple[Search, Exception]] = []
        call = None
        if wanted:
            with self._spent():
                call = self._prepared(args, number, refused)
        outputs = compiled(*args) if call is None else self._observed(args, call)
        self._call.captured.ran(self._stages, args, outputs)
        for search, error in refused:
            self._call.refusals.note(in_one_line(error), partial(self._refused, search, in_one_line(error)))
        took = time.perf_counter() - looked
        if wanted:
            self.attention.checked(took)
        else:
            self.attention.unchecked(looked - start, took)
        return outputs

    def _observed(self, args: tuple[Any, ...], call: tuple[Search, Backward | None]) -> Any:
        compiled = self._stages.compiled
        assert compiled is not None
        search, backward = call
        outputs = compiled(*args)
        try:
            with outside_modes(), self._spent(), self._marked(search.call.number):
                with torch.no_grad():
                    self._judge(search.call.results(outputs, args), search, last=backward is None)
                if backward is not None and not self._wrong:
                    backward.follow(outputs, args, compiled, partial(self._gradients, search.call))
        except FindingsError:
            raise
        except (Unavailable, NotImplementedError) as e:
            self.skipped(f"whether rounding explains its results cannot be told: {e}")
        except Exception as e:  # a check that fails ends the check, never the user's job
            log.debug("stages check failed", exc_info=True)
            self.skipped(f"torchsan failed: {in_one_line(e)}")
        return outputs

    def _spent(self) -> spent:
        return spent("stages", next(iter(self._refs.values()), None), later=self.attention.later)

    def _marked(self, number: int) -> AbstractContextManager[None]:
        """Notes that the graph is run, for when that kills the process."""
        graph = next(iter(self._refs.values()), None)
        return nullcontext() if self._flight is None or graph is None else self._flight.checking(graph, number)

    def _refused(self, search: Search, error: str) -> None:
        """Report a call that the program refuses, as Dynamo's graph does, and that was made."""
        with outside_modes(), torch.no_grad(), self._marked(search.call.number):
            found = refusal_finding(search, error, self._stages.backend, self._ref, self._kernel_of)
        self._found(found.stage, found.pass_, search, lambda: found, no_result)

    def _prepared(
        self, args: tuple[Any, ...], number: int, refused: list[tuple[Search, Exception]]
    ) -> tuple[Search, Backward | None] | None:
        """What it takes to check this call; None if it is not to be checked, or cannot be. `refused` if it raises."""
        try:
            reason = unsupported(args)
            if reason is not None:
                self.skipped(reason)
                return None
            self._later = self._first is not None
            with outside_modes():
                self._first = self._first or look_at(args)
            users = {"users_kernels": self._users_kernels, "users_code": self._users_code}
            call = RepeatableCall(args, self._names, self._mutated, number, **users)
            search = Search(self._stages, call, None, self.skipped)
            with self._marked(number):
                if (error := search.refusal) is not None:  # Before the program goes on and changes what it reads.
                    refused.append((search, error))
                    raise error
            return search, Backward(call, args, self.skipped, self._spent()) if call.circumstances.grad else None
        except Exception as e:  # what cannot be run again cannot be checked
            log.debug("cannot run Dynamo's graph", exc_info=True)
            # A kernel of the user's own is nobody's but theirs: that it was not run must not read as clean.
            tell = self._unchecked if self._users_kernels else self.skipped
            tell(f"Dynamo's graph cannot be run on copies of the inputs: {in_one_line(e)}")
            return None

    def _gradients(self, call: RepeatableCall, actual: Results, cotangents: Mapping[str, torch.Tensor]) -> None:
        if not self._wrong:
            search = Search(self._stages, call, cotangents, self.skipped)
            self._judge(actual, search, last=True)
            if not self._reported:
                for parameter, gradient in call.held_gradients(search.reference):
                    self._call.eager_gradients.note(parameter, gradient)

    def _judge(self, actual: Results, search: Search, *, last: bool) -> None:
        """Judge the results of a call, or its gradients; `last` if nothing more of the call is to be judged."""
        random = search.reference.draws > 0
        direction = Direction.BACKWARD if search.backward else Direction.FORWARD
        self._checked(direction, list(actual.tensors))
        # Half precision hides what a graph does wrong in its last bits; float64 shows it.
        doubtful = random or not same(actual, search.reference) or _coarse(actual, search.reference)
        if doubtful and not self._as_before(actual, search):
            if not search.repeats():
                self.skipped("what is not PyTorch's own gives another result each time")
                return
            culprit = search.culprit()
            if culprit is not None:
                self._blame(culprit, search)
            elif not random:
                self._judge_compiled(actual, search, direction)
            elif not self._stages.parts:
                self.skipped("it draws random numbers, and the backend keeps no graphs to compare")
            elif search.exact is not None:
                self._usual[search.backward, search.call.looks] = {}
        if not self._reported:
            relaid = search.relaid(actual)
            if relaid is not None:
                self._blame(relaid, search)
        if last and not self._reported:
            self._note_order(search, direction)

    def _as_before(self, actual: Results, search: Search) -> bool:
        """Whether the results are as near to eager's as rounding has taken them in an earlier call of this kind.

        There the graphs were found to mean the same in float64, and eager was as far from float64 as is noted.
        """
        usual = self._usual.get((search.backward, search.call.looks))
        eager = search.reference
        if usual is None or eager.draws:
            return usual is not None
        if structural(actual, eager) or actual.tensors.keys() != eager.tensors.keys():
            return False
        pairs = [(*pair(actual, eager, name), usual.get(name, 0.0)) for name in eager.tensors]
        return all(as_near_as_usual(a, e, error) for a, e, error in pairs if a is not None and e is not None)

    def _note_order(self, search: Search, direction: Direction) -> None:
        """A change of places that these numbers do not show is said, and no more than that."""
        steps = [(s.stage, s.label, found) for s, found in self._order().items()]
        steps += [(Stage.KERNEL, None, found) for d, found in self._launches.items() if found and d is direction]
        for stage, label, found in steps:
            fields: dict[str, Any] = {"stage": stage, "pass_": label, "graph": self._ref(direction)}
            what = f"the pass {label}" if label else f"{stage}"
            if (stage, label) not in self._noted:
                self._noted.add((stage, label))
                finding = replace(unconfirmed(what, self._in_words(found), **fields), call=search.call.number)
                self._report(finding, partial(exhibit_of_call, self._stages, search, None))

    def _judge_compiled(self, actual: Results, search: Search, direction: Direction) -> None:
        """Every graph means the same. Is what was compiled from the last beyond rounding, and since when?"""
        differences = structural(actual, search.reference)
        if self._blamed() is not None and not search.overlapping:
            self._tell_consequences(actual, search, direction, differences)
            return
        names, far, errors = _doubtful(actual, search.reference, search.exact, {d.name for d in differences})
        judged = differences + search.wrong(actual, far)
        differences = [d for d in judged if d.judgement is None or d.judgement.outcome is not Outcome.UNDECIDED]
        if not differences and search.exact is not None:
            self._usual[search.backward, search.call.looks] = errors
        if not names and not differences:
            return
        culprit = search.less_precise(names + [d.name for d in differences])
        if culprit is not None:
            self._blame(culprit, search)
        elif differences and search.overlapping:
            # The step that made a copy of a tensor onto a part of itself: what comes of that depends on the order.
            made = search.overlapping[0]
            self._blame(Culprit(graph=made, differences=tuple(differences), arithmetic=Arithmetic.EAGER), search)
        elif differences:
            self._blame_code(actual, search, direction, differences, names)
        else:
            self._leave_open(actual, names, search, direction, undecided=bool(judged))

    def _leave_open(
        self, actual: Results, names: list[str], search: Search, direction: Direction, *, undecided: bool
    ) -> None:
        """Nothing is beyond rounding without doubt: note a choice that rounding decided, or say what is not known."""
        if self._flip() is None and (note := self._flipped(actual, names, search, direction)) is not None:
            self._found(Stage.KERNEL, "flip", search, lambda: note)
        elif undecided:
            self.skipped("its results are several times as far from float64 as eager's; whether it is rounding is open")
        elif not self._kernels_elsewhere:
            self.skipped("the compiled code is less precise than eager; the values check says which kernel")

    def _tell_consequences(
        self, actual: Results, search: Search, direction: Direction, differences: list[Difference]
    ) -> None:
        """A kernel of this graph is wrong: say what comes of it where that is plain, without any further run."""
        differences += plainly_other(actual, search.reference, search.reference.tensors)
        if differences:
            self._blame_code(actual, search, direction, differences, [])

    def _blame_code(
        self, actual: Results, search: Search, direction: Direction, differences: list[Difference], names: list[str]
    ) -> None:
        """No graph is to blame: what was made of the last one is, or a kernel of it that chose otherwise."""
        imprecise = differences[0].kind is Kind.PRECISION_LOSS
        cause = self._blamed()
        severity = Severity.WARNING if imprecise or cause else Severity.ERROR
        what = f"the code that {self._stages.backend} generated returns other values than the graph that it was given"
        about = search.computing(differences[0].name)
        fields: dict[str, Any] = {"stage": Stage.KERNEL, "graph": self._ref(direction)}
        flip = None if cause else self._flip() or self._flipped(actual, names, search, direction)
        if flip is not None:
            what, fields = because_of(flip, what)
        make = partial(difference_finding, what, differences, about=about, severity=severity, **fields)
        moved = self._in_words(r for found in self._launches.values() for r in found) if not imprecise else []
        self._found(
            Stage.KERNEL, None, search, lambda: following(order_finding(make(), moved) if moved else make(), cause)
        )

    def _flipped(self, actual: Results, names: list[str], search: Search, direction: Direction) -> Finding | None:
        """The note of results that are others than eager's because an operator between may go either way, if any."""
        pairs = [(n, *pair(actual, search.reference, n)) for n in names]
        apart = [(n, _jumped(a, e)) for n, a, e in pairs if a is not None and e is not None and a.shape == e.shape]
        name, where = next(((n, where) for n, where in apart if bool(where.any())), (None, None))
        flip = None if name is None or where is None else search.flip(where)
        if name is None or where is None or flip is None:
            return None
        ref = self._ref(direction)
        kernel = next((k for n in flip.upstream if (k := self._kernel_of(ref, n.name)) is not None), None)
        return flip_note(flip, name, int(where.sum()), where.numel(), kernel, ref)

    def _blame(self, culprit: Culprit, search: Search) -> None:
        # A graph that cannot be run shows what it did only in the next one; if it changed places, it is to blame.
        earlier = [g for g in search.not_run_before(culprit) if g.changed in self._order()]
        culprit = replace(culprit, graph=earlier[0]) if earlier else culprit
        graph = culprit.graph
        make = partial(stage_finding, graph, culprit.differences, self._ref(graph.direction))
        self._found(graph.stage, graph.changed.label, search, lambda: self._named(culprit, search, make))

    def _named(self, culprit: Culprit, search: Search, make: Callable[[list[torch.fx.Node]], Finding]) -> Finding:
        """The finding for a wrong step: the statements that changed places in it, if that is what it did."""
        found = make(search.blamed(culprit))
        if culprit.differences[0].kind is Kind.PRECISION_LOSS:
            return found
        moved, reused = self._order().get(culprit.graph.changed, ()), False
        if not moved and culprit.graph.previous is None and not search.backward:
            moved, reused = search.lost_writes(culprit)
        if not moved:
            return found
        named = order_finding(found, self._in_words(moved))
        # Inputs that did not overlap when it was compiled: no step changed any order, the graph is not for this call.
        return replace(named, kind=found.kind) if reused else named

    def _found(
        self,
        stage: Stage | None,
        pass_: str | None,
        search: Search,
        make: Callable[[], Finding],
        exhibit: Build | None = None,
    ) -> None:
        """Report, once for a step; one wrong step is enough to leave the later ones alone."""
        if (stage, pass_) not in self._reported:
            self._reported.add((stage, pass_))
            finding = replace(make(), call=search.call.number)
            self._wrong = stage is not Stage.KERNEL
            earlier = self._first if self._later else None
            self._report(finding, exhibit or partial(exhibit_of_call, self._stages, search, earlier))

    def _in_words(self, moved: Iterable[Reordered]) -> list[Reordered]:
        """The same, with inputs called as the user knows them, where AOTAutograd's are those of Dynamo's graph."""
        names: dict[str, str] = {}
        for part in self._stages.parts:
            for trail in (part.whole, part.forward):
                inputs = [n.name for s in trail.snapshots[-1:] for n in s.graph.nodes if n.op == "placeholder"]
                if part.training or len(inputs) == len(self._names):
                    names |= {f"input {n}": own for n, own in zip(inputs, self._names, strict=False)}
        names |= dict(zip(self._raw_names, self._names, strict=True))
        return [replace(r, storage=names.get(r.storage, r.storage)) for r in moved]

    def _ref(self, direction: Direction) -> GraphRef | None:
        return self._refs.get(direction) or next(iter(self._refs.values()), None)


def _look(args: tuple[Any, ...]) -> Any:
    try:
        with outside_modes():
            return fingerprint(args)
    except (RuntimeError, NotImplementedError):  # No strides, no storage: then one is like the other.
        return None


def _coarse(actual: Results, reference: Results) -> bool:
    """Whether results in half precision differ at all."""
    pairs = (pair(actual, reference, name) for name in reference.tensors)
    return any(
        a is not None and e is not None and a.dtype in (torch.float16, torch.bfloat16) and not torch.equal(a, e)
        for a, e in pairs
    )


def _jumped(a: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """Which elements are others, and not only less precise."""
    if not e.is_floating_point():
        return a != e
    a, e = a.double(), e.double()
    return ~((a - e).abs() <= 0.01 * e.abs().nan_to_num(0, 0, 0).max())


def _doubtful(
    actual: Results, reference: Results, exact: Results | None, apart: set[str]
) -> tuple[list[str], list[str], dict[str, float]]:
    """The results that lie farther from float64's than eager's, and those of them that precision does not explain.

    And how far from it eager's lie, of those that are not the same as eager's.
    """
    names, far, errors = [], [], {}
    for name, eager in reference.tensors.items():
        a = actual.tensors.get(name)
        if name in apart or a is None or (eager is not None and agrees(a, eager)):
            continue
        if exact is None:
            names.append(name)
            far.append(name)
            continue
        c = pair(exact, reference, name)[0]
        if eager is not None and c is not None and as_near_as_eager(a, eager, c):
            errors[name] = relative_error(eager, c)
            continue
        names.append(name)
        # How precise a kernel is, the values check can say; here it is asked whether it is a kernel of this program.
        discrete = not (a.is_floating_point() or a.is_complex())
        if discrete or c is None or is_another(a, c, eager):
            far.append(name)
    return names, far, errors


def _readable(name: str) -> str:
    """`l_x_` and `L_self_modules_fc_parameters_weight_` as people know them: `x`, `fc.weight`."""
    name = re.sub(r"^[lL]_|_$", "", name)
    name = re.sub(r"^self_modules_", "", name)
    return f"input {re.sub(r'_(?:parameters|buffers)_', '.', name).replace('_modules_', '.')}"
