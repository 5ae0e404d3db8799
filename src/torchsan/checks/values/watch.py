"""Judges every launch of a compiled program by replaying what it computes from the values that it actually had."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.collector import Build
from torchsan.checks.values.exhibit import exhibit_of
from torchsan.checks.values.findings import (
    Wrong,
    findings_for,
    flip_finding,
    outside_finding,
    unsteady_finding,
)
from torchsan.checks.values.other_inputs import Repetition, is_copy, other_data, shaken_data, with_copies
from torchsan.checks.values.plan import FunctionInputs, Held, LaunchPlan, Target
from torchsan.checks.values.repeats import Ran, comes_out_otherwise, current_core, unsteady, wrong_only_once
from torchsan.checks.values.sample import Sample, memory_needed, renamed, with_sources, writers
from torchsan.errors import in_one_line
from torchsan.recording import Recorder
from torchsan.records import Check, Finding, KernelKind
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.coherence import SharedAgain
from torchsan.reference.flips import See, find_flip
from torchsan.reference.judge import Judgement, Outcome
from torchsan.reference.replay import Again, Replayer
from torchsan.reference.steady import ElementsAgain
from torchsan.reference.users_kernels import copied, went_outside
from torchsan.reference.usual import Usual
from torchsan.torch_internals.fakes import bind_symbols
from torchsan.torch_internals.operators import undisturbed
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CallWatch, CompiledProgram, Values

log = logging.getLogger(__name__)

Known = dict[torch.fx.Node, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What the results of a launch are computed from, those of launches before it included.

    `through` are earlier kernels that left a variable without a node: their results are judged here. `suspect` tells
    that one of them was found wrong: what follows from it is no finding of its own.
    """

    known: Known
    effects: tuple[torch.fx.Node, ...]
    through: tuple[Launch, ...]
    suspect: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launched:
    """A launch that has run, and what its results are judged by."""

    launch: Launch
    plan: LaunchPlan
    values: Values
    start: _Start
    replayer: Replayer


class ValuesWatch(CallWatch):
    """Checks one call. Holds the operands of one launch at a time, and those of launches with unfinished results."""

    def __init__(
        self,
        writer: Recorder,
        program: CompiledProgram,
        plans: Mapping[int, LaunchPlan],
        report: Callable[[CompiledProgram, Finding, Build], None],
        *,
        functions: Mapping[str, FunctionInputs],
        usual: Usual,
        probes: bool,
        sample: Sample | None = None,
        max_memory: int | None = None,
    ) -> None:
        """`usual` is how far from eager the program's results are. `probes` asks for a close look, and for launches on
        other data as well. With a `sample` its launches are looked at, and those that they need. `max_memory` bounds
        what a launch takes for copies.
        """
        self._writer = writer
        self._program = program
        self._plans = plans
        self._functions = functions
        self._report = report
        self._before: dict[str, Any] = {}
        self._repetition = Repetition()
        self._again: Callable[..., Any] | None = None
        self._usual = usual
        self._twins = Usual(rounded_once=True)
        """The same by the code of the launches: that of a model's first layer is that of the others."""
        self._probes = probes
        self._sample = sample
        self._wanted = None if sample is None else with_sources(sample.look.launches, plans)
        # Of what writes a variable that is read under another name, the layout is needed.
        self._renamed = None if self._wanted is None else renamed(self._wanted, plans)
        if self._wanted is not None:
            self.only = self._wanted | writers(self._renamed or (), program)
        self._done: set[int] = set()
        self._max_memory = max_memory
        self._began = time.perf_counter()
        self._seconds = 0.0
        self._kept: dict[str, _Start] = {}
        self._symbols: dict[str, dict[Any, Any]] = {}
        self._layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._inputs: dict[str, dict[torch.fx.Node, weakref.ref[torch.Tensor]]] = {}
        self._checked: set[str] = set()
        self._too_large = False
        self._core: int | None = None
        self._looked_at: LaunchPlan | None = None
        """How the launch under way is looked at, if it is."""
        self._outside: set[int] = set()

    def enter(self, function: str, inputs: Values) -> None:
        self._enter(function, inputs)
        self._seconds += time.perf_counter() - self._began

    def _enter(self, function: str, inputs: Values) -> None:
        self._note_layouts(inputs, inputs)
        known = self._functions.get(function)
        if known is None:
            return
        if known.symbolic:
            graph = self._program.graphs[function].module.graph
            self._symbols[function] = bind_symbols(graph, inputs.values())
        # Not held: an input that its owner lets go may be freed, as without torchsan.
        self._inputs[function] = {
            node: weakref.ref(value)
            for node, (name, value) in zip(known.placeholders, inputs.items(), strict=False)
            if isinstance(value, torch.Tensor) and name not in known.written
        }

    def _plan(self, launch: Launch) -> LaunchPlan | None:
        if self._wanted is not None and launch.nth not in self._wanted:
            return None
        if self._sample is not None and self._seconds > self._sample.look.seconds:
            return None
        return self._plans.get(launch.nth)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        start = time.perf_counter()
        plan = self._looked_at = self._plan(launch)
        self._before = {}
        self._too_large = plan is not None and self._max_memory is not None and memory_needed(values) > self._max_memory
        if plan is None or self._too_large:
            return
        overwritten = set(launch.writes)
        copy = copied if launch.users_own else _copy
        with undisturbed():
            self._repetition.before(launch, values)
            for name in plan.known:
                if name in overwritten and isinstance(values[name], torch.Tensor):
                    self._before[name] = copy(values[name])
        self._core = current_core()
        self._seconds += time.perf_counter() - start

    def repeatable(self, function: str, launch: Launch, again: Callable[..., Any]) -> None:
        self._again = again

    def after(self, function: str, launch: Launch, values: Values) -> None:
        began = time.perf_counter()
        plan = self._looked_at
        again, self._again = self._again, None
        if plan is None or self._too_large:
            self._pass_over(launch, values)
            return
        self._done.add(launch.nth)
        start = self._start(plan, values)
        with undisturbed():
            replayer = self._replayer(function, launch, start)
            at = _Launched(launch=launch, plan=plan, values=values, start=start, replayer=replayer)
            wrong = self._check(at, again)
            del at, replayer
            if plan.keep:
                self._keep(launch, plan, start, wrong=wrong)
        self._before = {}
        self._repetition.forget()
        self._note_layouts(launch.writes, values)
        unpacked = {t.buffer: _result(values[t.variable], t) for t in plan.targets if t.variable != t.buffer}
        self._note_layouts(unpacked, unpacked)
        self._seconds += time.perf_counter() - began

    def _pass_over(self, launch: Launch, values: Values) -> None:
        """Of a launch that is not looked at, those after it need the layouts."""
        plan = self._plans.get(launch.nth)
        if plan is None:
            return
        self._note_layouts(launch.writes, values)
        if self._too_large:
            for target in plan.targets:
                self._skip(target.buffer, "its check needs more memory for copies than --max-memory allows")

    def _check(self, at: _Launched, again: Callable[..., Any] | None) -> bool:
        """Report what is wrong with a launch; return whether a result is, for those that are computed from it."""
        others = {} if again is None else self._repetition.differences(at.values, again)
        usual = self._is_as_usual(at)
        if usual and not others:
            return False
        # What was nearer to eager before may have an error that hides below the rounding of each element.
        found = self._judge(at, thorough=self._probes or usual is False)
        wrong = [c for w in found if (c := self._confirmed(w, at, again)) is not None]
        reported = self._report_unsteady(at, others, wrong, again) if again is not None else set()
        wrong = [w for w in wrong if w.target.variable not in reported]
        if not at.start.suspect:
            self._report_wrong(at, wrong)
            if self._probes and again is not None and not wrong and not others:
                self._try_other_data(at, again)
        return bool(wrong)

    def _is_as_usual(self, at: _Launched) -> bool | None:
        """Whether no closer look is needed: all results lie as near to eager's as they did when they were judged.

        In the first call, as those of another launch of the same code did. None if that is not known, or not asked.
        """
        closely = self._sample is not None and self._sample.look.closely
        if closely or at.start.suspect or (self._probes and at.launch.kind is not KernelKind.FUSED):
            return None
        results = {t: actual for t in at.plan.targets if (actual := _result(at.values[t.variable], t)) is not None}
        usual, name = (self._twins, _code) if self._probes else (self._usual, _place)
        if not all(usual.knows(name(at, t)) for t in results):
            return None
        try:
            eager = at.replayer.run_all([t.node for t in results], Arithmetic.EAGER)
        except Exception:  # what cannot be replayed is said when it is judged
            log.debug("cannot replay %s", at.launch.kernel, exc_info=True)
            return None
        pairs = [(target, actual, again) for (target, actual), again in zip(results.items(), eager, strict=True)]
        if not all(usual.allows(name(at, t), actual, again) for t, actual, again in pairs):
            return False
        for target, actual, again in pairs:
            self._checked.update((target.buffer, target.variable, *at.plan.inner))
            if self._probes:
                self._usual.learn(_place(at, target), actual, again)
        return True

    def _start(self, plan: LaunchPlan, values: Values) -> _Start:
        sources = [self._kept[name] for name in plan.inner if name in self._kept]
        known: Known = {}
        for source in sources:
            known.update(source.known)
        for name, held in plan.known.items():
            value = self._in_shape(self._before.get(name, values[name]), name, held)
            if value is not None:
                known.update(dict.fromkeys(held.nodes, value))
        return _Start(
            known=known,
            effects=tuple(dict.fromkeys((*(e for s in sources for e in s.effects), *plan.effects))),
            through=tuple({launch.nth: launch for s in sources for launch in s.through}.values()),
            suspect=any(s.suspect for s in sources),
        )

    def _replayer(self, function: str, launch: Launch, start: _Start) -> Replayer:
        # A kernel may leave out an input that its result does not depend on, and must not leave out another.
        alive = {node: value for node, ref in self._inputs.get(function, {}).items() if (value := ref()) is not None}
        return Replayer(
            {**alive, **start.known},
            attribute=partial(self._program.attribute, function),
            symbols=self._symbols.get(function, {}),
            effects=start.effects,
            triton=self._program.model.is_triton(launch),
        )

    def _keep(self, launch: Launch, plan: LaunchPlan, start: _Start, *, wrong: bool) -> None:
        """Keep the operands of a launch that left variables without a node, for the launches that read them."""
        copies = {id(v): _copy(v) if isinstance(v, torch.Tensor) else v for v in start.known.values()}
        known = {n: copies[id(v)] for n, v in start.known.items()}
        kept = replace(start, known=known, through=(*start.through, launch), suspect=start.suspect or wrong)
        self._kept.update(dict.fromkeys(plan.keep, kept))

    def _note_layouts(self, names: Iterable[str], values: Values) -> None:
        for name in names:
            value = values[name] if self._renamed is None or name in self._renamed else None
            if isinstance(value, torch.Tensor):
                self._layouts[name] = (tuple(value.shape), value.stride())

    def _in_shape(self, value: Any, name: str, held: Held) -> Any:
        """The value of an operand in the shape that its nodes have; None if that is not known."""
        if name == held.variable or not isinstance(value, torch.Tensor):
            return value
        layout = self._layouts.get(held.variable)
        if layout is None:
            # The result of a subgraph: nobody has seen it under its first name.
            meta = held.nodes[0].meta.get("val")
            return value if isinstance(meta, torch.Tensor) and meta.shape == value.shape else None
        return value if layout == (tuple(value.shape), value.stride()) else value.as_strided(*layout)

    def close(self, error: BaseException | None) -> None:
        ref = self._program.ref
        began = time.perf_counter()
        self._writer.checked(ref.id, ref.direction, sorted(self._checked), Check.VALUES)
        if self._sample is not None:
            self._sample.looked(self._done, self._seconds + time.perf_counter() - began)

    def _confirmed(self, wrong: Wrong, at: _Launched, again: Callable[..., Any] | None) -> Wrong | None:
        """What is left of a wrong result after other data were asked, where they have to be."""
        judgement = wrong.judgement
        while judgement.otherwise is not None and not self._shows_again(judgement, wrong, at, again):
            judgement = judgement.otherwise
        return None if judgement.outcome is Outcome.RIGHT else replace(wrong, judgement=judgement)

    def _shows_again(self, judgement: Judgement, wrong: Wrong, at: _Launched, again: Callable[..., Any] | None) -> bool:
        """Whether the same error shows when the launch is repeated on other data, as often as needed."""
        coherent = judgement.coherent
        try:
            found = ElementsAgain(wrong.actual, *judgement.outside) if coherent is None else SharedAgain(coherent)
            shown = None if again is None else self._repeated(found, wrong.target, at, again)
        except (RuntimeError, IndexError, Unavailable) as e:  # Other numbers may be none that an operator takes.
            log.debug("%s does not run on other data: %s", at.launch.kernel, e)
            return False
        return coherent is not None and coherent.is_beyond_doubt if shown is None else shown

    def _repeated(self, found: Again, target: Target, at: _Launched, again: Callable[..., Any]) -> bool | None:
        """The same; None if the launch cannot be judged so."""
        if not at.start.effects:
            at = replace(at, plan=with_copies(at.launch, at.plan, at.start.known, at.values))
        shaken = shaken_data(at.launch, at.plan, {**at.values, **self._before}, at.values)
        if shaken is None:
            return None
        answers = (self._shows_on(others, found, target, at, again) for others in shaken)
        return next((shown for shown in answers if shown is not None), False)

    def _shows_on(
        self, others: Mapping[str, Any], found: Again, target: Target, at: _Launched, again: Callable[..., Any]
    ) -> bool | None:
        known = {
            node: _copy(value) if isinstance(value, torch.Tensor) else value
            for name, held in at.plan.known.items()
            if (value := self._in_shape(others.get(name, at.values[name]), name, held)) is not None
            for node in held.nodes
        }
        changed = {n for n, v in known.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
        returned = again(**{name: t for name, t in others.items() if name in at.launch.operands})
        values = {**at.values, **others} | ({} if at.launch.result is None else {at.launch.result: returned})
        actual = _result(values[target.variable], target)
        return False if actual is None else at.replayer.instead(known).confirms(found, target.node, actual, changed)

    def _judge(self, at: _Launched, *, thorough: bool = False) -> list[Wrong]:
        wrong: list[Wrong] = []
        for buffer, reason in at.plan.unchecked:
            self._skip(buffer, reason)
        at.replayer.expect(target.node for target in at.plan.targets)
        # Backwards: what a result is computed from comes with it.
        for target in reversed(at.plan.targets):
            actual = _result(at.values[target.variable], target)
            if actual is None:
                continue
            try:
                judgement = at.replayer.judge(target.node, actual, thorough=thorough)
                otherwise = judgement.outcome is not Outcome.RIGHT and comes_out_otherwise(at.plan, at.replayer, target)
            except Unavailable as e:
                self._skip(target.buffer, str(e))
                self._report_outside(at, target, e)
            except Exception as e:  # an operator that cannot run here ends the check of this buffer, no more
                log.debug("cannot replay %s", target.buffer, exc_info=True)
                self._skip(target.buffer, f"replay failed: {in_one_line(e)}")
            else:
                # What has no node of its own is checked through the first buffer that depends on it.
                self._checked.update((target.buffer, target.variable, *at.plan.inner))
                if judgement.outcome is Outcome.RIGHT:
                    self._usual.learn(_place(at, target), actual, judgement.eager)
                    self._twins.learn(_code(at, target), actual, judgement.eager)
                if otherwise:
                    self._skip(target.buffer, "an operator that is not PyTorch's own gives another result each time")
                elif judgement.outcome is not Outcome.RIGHT:
                    wrong.append(Wrong(target=target, judgement=judgement, actual=actual, operands=at.start.known))
                elif not actual.is_floating_point() and not at.start.suspect:
                    self._report_flip(at, target, actual != judgement.eager)
        at.replayer.expect(())
        return wrong[::-1]

    def _report_outside(self, at: _Launched, target: Target, why: Unavailable) -> None:
        """Report a read outside of all tensors by a user's kernel: its source, run on copies, does it.

        They are copies of what the program passes, gaps included, or else it may have read those. A write is not
        reported, because the memory check sees those themselves.
        """
        outside = went_outside(why)
        if outside is None or outside.access != "reads" or at.launch.nth in self._outside:
            return
        pairs = [
            (at.values[name], value)
            for name, held in at.plan.known.items()
            if isinstance(value := at.start.known.get(held.nodes[0]), torch.Tensor)
        ]
        if all(isinstance(real, torch.Tensor) and _room(real) == _room(copy) for real, copy in pairs):
            self._outside.add(at.launch.nth)
            finding = outside_finding(self._program, at.launch, at.plan, target, outside)
            self._report(self._program, finding, partial(exhibit_of, at.replayer, target.node))

    def _report_flip(self, at: _Launched, target: Target, apart: torch.Tensor) -> None:
        """Note where a right result, such as an index, is another than eager's because rounding decides it."""
        if not bool(apart.any()):
            return

        def run(arithmetic: Arithmetic, seed: int, see: See) -> Any:
            def change(node: torch.fx.Node, value: torch.Tensor, _args: Any) -> torch.Tensor:
                see(node, value)
                return value

            return at.replayer.run(target.node, arithmetic, seed, change)

        flip = find_flip(run, apart)
        if flip is not None:
            finding = flip_finding(self._program, at.launch, target, flip, int(apart.sum()), apart.numel())
            self._report(self._program, finding, partial(exhibit_of, at.replayer, target.node))

    def _report_unsteady(
        self, at: _Launched, others: Mapping[str, torch.Tensor], wrong: Iterable[Wrong], again: Callable[..., Any]
    ) -> set[str]:
        """Report what came out otherwise when the launch ran again; return the variables that need no other finding.

        One that rounding does not explain is one finding, whether or not it came out right this time.
        """
        ran = Ran(
            launch=at.launch,
            plan=at.plan,
            values=at.values,
            replayer=at.replayer,
            core=self._core,
            atomic=self._program.model.adds_atomically(at.launch),
        )
        found = list(unsteady(ran, others, self._repetition, again))
        known = {one.name for one in found}
        for each in wrong:
            if each.judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE) and each.target.variable not in known:
                once = wrong_only_once(ran, each.target, each.actual, self._before, again)
                found += [] if once is None else [once]
        for one in found:
            result = one.target.node if one.target is not None else at.plan.nodes[-1]
            finding = unsteady_finding(self._program, at.launch, at.plan, one)
            self._report(self._program, finding, partial(exhibit_of, at.replayer, result))
        return {one.name for one in found if one.rounding is False}

    def _report_wrong(self, at: _Launched, wrong: list[Wrong]) -> None:
        inner = [n for n in at.plan.inner if n in self._kept and n not in at.launch.writes]
        copied = next((n for n in inner if len(wrong) == 1 and is_copy(at.values.get(n), wrong[0].actual)), None)
        if copied is not None:  # This launch only copies what the launch before got wrong.
            wrong = [replace(wrong[0], target=replace(wrong[0].target, buffer=copied))]
            at = replace(at, launch=self._kept[copied].through[-1])
        through = tuple(dict.fromkeys(x.kernel for x in at.start.through if x.nth != at.launch.nth))
        for each, finding in findings_for(self._program, at.launch, at.plan, wrong, through):
            self._report(self._program, finding, partial(exhibit_of, at.replayer, each.target.node))

    def _try_other_data(self, at: _Launched, again: Callable[..., Any]) -> None:
        """Judge what the kernel makes of data that would show what this call's may hide."""
        for others, filled in other_data(at.launch, at.plan, at.values):
            again(**{name: t for name, t in others.items() if name in at.launch.operands})
            values = {**at.values, **others}
            start = self._start(at.plan, values)
            elsewhere = replace(at, values=values, start=start, replayer=at.replayer.instead(start.known))
            wrong = [replace(w, filled=filled) for w in self._judge(elsewhere)]
            if wrong:
                self._report_wrong(elsewhere, wrong)
                break

    def _skip(self, buffer: str, reason: str) -> None:
        self._writer.skipped(f"{buffer} of graph {self._program.record.label}", reason)


def _place(at: _Launched, target: Target) -> Hashable:
    """Which result of the program it is."""
    return at.launch.nth, target.buffer


def _code(at: _Launched, target: Target) -> Hashable:
    """By which code it is computed, and of which size."""
    actual = _result(at.values[target.variable], target)
    about = None if actual is None else (tuple(actual.shape), actual.dtype)
    return at.launch.kernel, at.plan.targets.index(target), str(target.node.target), about


def _result(value: Any, target: Target) -> torch.Tensor | None:
    if target.item is not None and isinstance(value, tuple | list):
        value = value[target.item]
    return value if isinstance(value, torch.Tensor) else None


def _room(t: torch.Tensor) -> tuple[Any, ...]:
    """What of its memory can be reached from a tensor."""
    return (t.stride(), t.storage_offset(), t.untyped_storage().nbytes())


def _copy(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, so that a replay takes the same path through the libraries."""
    return t.detach().clone(memory_format=torch.preserve_format)
