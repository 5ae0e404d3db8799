"""Judges every launch of a compiled program by replaying what it computes from the values that it actually had."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.exhibits import Build
from torchsan.checks.values.exhibit import exhibit_of
from torchsan.checks.values.findings import Unsteady, Wrong, findings_for, unsteady_finding
from torchsan.checks.values.other_inputs import Repetition, other_bits, other_data, shaken_data
from torchsan.checks.values.plan import Held, LaunchPlan, Target
from torchsan.recording import Writer
from torchsan.records import Finding
from torchsan.reference.arithmetic import Unavailable
from torchsan.reference.judge import Judgement, Outcome
from torchsan.reference.replay import Replayer
from torchsan.torch_internals.fakes import bind_symbols
from torchsan.torch_internals.operators import undisturbed
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CallWatch, CompiledProgram, Values

log = logging.getLogger(__name__)

_NOISE = 0.01
"""A part of an error that may come and go without being the error."""

_UNCONFIRMED_SIGMAS = 15.0
"""How far outside of chance an error that all elements share must lie where the launch cannot be repeated."""

Known = dict[torch.fx.Node, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What the results of a launch are computed from, those of launches before it included.

    `through` are earlier kernels that left a variable without a node: their results are judged here. `suspect` tells
    that one of them was found wrong: what follows from it is no finding of its own.
    """

    known: Known
    effects: tuple[torch.fx.Node, ...]
    through: tuple[str, ...]
    suspect: bool


class ValuesWatch(CallWatch):
    """Checks one call. Holds the operands of one launch at a time, and those of launches with unfinished results."""

    def __init__(
        self,
        writer: Writer,
        program: CompiledProgram,
        plans: Mapping[int, LaunchPlan],
        report: Callable[[CompiledProgram, Finding, Build], None],
        *,
        probes: bool,
    ) -> None:
        """`probes` asks for launches on other data as well."""
        self._writer = writer
        self._program = program
        self._plans = plans
        self._report = report
        self._before: dict[str, Any] = {}
        self._repetition = Repetition()
        self._again: Callable[..., Any] | None = None
        self._probes = probes
        self._kept: dict[str, _Start] = {}
        self._symbols: dict[str, dict[Any, Any]] = {}
        self._layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._inputs: dict[str, dict[torch.fx.Node, weakref.ref[torch.Tensor]]] = {}
        self._checked: set[str] = set()

    def enter(self, function: str, inputs: Values) -> None:
        self._note_layouts(inputs, inputs)
        graph = self._program.graphs.get(function)
        if graph is None:
            return
        self._symbols[function] = bind_symbols(graph.module.graph, inputs.values())
        written = {n for launch in self._program.model.functions[function].launches() for n in launch.writes}
        placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
        # Not held: an input that its owner lets go may be freed, as without torchsan.
        self._inputs[function] = {
            node: weakref.ref(value)
            for node, (name, value) in zip(placeholders, inputs.items(), strict=False)
            if isinstance(value, torch.Tensor) and name not in written
        }

    def before(self, function: str, launch: Launch, values: Values) -> None:
        plan = self._plans.get(launch.nth)
        self._before = {}
        if plan is None:
            return
        overwritten = set(launch.writes)
        with undisturbed():
            self._repetition.before(launch, values)
            for name in plan.known:
                if name in overwritten and isinstance(values[name], torch.Tensor):
                    self._before[name] = _copy(values[name])

    def repeatable(self, function: str, launch: Launch, again: Callable[..., Any]) -> None:
        self._again = again

    def after(self, function: str, launch: Launch, values: Values) -> None:
        plan = self._plans.get(launch.nth)
        again, self._again = self._again, None
        if plan is None:
            return
        start = self._start(plan, values)
        with undisturbed():
            wrong = self._check(function, launch, plan, values, start, again)
            if plan.keep:
                self._keep(launch, plan, start, wrong=wrong)
        self._before = {}
        self._note_layouts(launch.writes, values)
        unpacked = {t.buffer: _result(values[t.variable], t) for t in plan.targets if t.variable != t.buffer}
        self._note_layouts(unpacked, unpacked)

    def _check(
        self,
        function: str,
        launch: Launch,
        plan: LaunchPlan,
        values: Values,
        start: _Start,
        again: Callable[..., Any] | None,
    ) -> bool:
        """Report what is wrong with a launch; return whether a result is, for those that are computed from it."""
        replayer = self._replayer(function, start)
        others = {} if again is None else self._repetition.differences(values, again)
        wrong = self._judge(replayer, plan, values, start.known, thorough=self._probes)
        wrong = [w for w in wrong if self._is_confirmed(w, replayer, launch, plan, values, again)]
        reported = self._report_unsteady(replayer, launch, plan, values, others)
        wrong = [w for w in wrong if w.target.variable not in reported]
        if not start.suspect:
            self._found(launch, plan, wrong, start.through, replayer)
            if self._probes and again is not None and not wrong and not others:
                self._try_other_data(replayer, launch, plan, values, again)
        return bool(wrong)

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
            through=tuple(dict.fromkeys(kernel for s in sources for kernel in s.through)),
            suspect=any(s.suspect for s in sources),
        )

    def _replayer(self, function: str, start: _Start) -> Replayer:
        # A kernel may leave out an input that its result does not depend on, and must not leave out another.
        alive = {node: value for node, ref in self._inputs[function].items() if (value := ref()) is not None}
        return Replayer(
            {**alive, **start.known},
            attribute=partial(self._program.attribute, function),
            symbols=self._symbols.get(function, {}),
            effects=start.effects,
        )

    def _keep(self, launch: Launch, plan: LaunchPlan, start: _Start, *, wrong: bool) -> None:
        """Keep the operands of a launch that left variables without a node, for the launches that read them."""
        known = {n: _copy(v) if isinstance(v, torch.Tensor) else v for n, v in start.known.items()}
        through = (*start.through, launch.kernel)
        kept = replace(start, known=known, through=through, suspect=start.suspect or wrong)
        self._kept.update(dict.fromkeys(plan.keep, kept))

    def _note_layouts(self, names: Iterable[str], values: Values) -> None:
        for name in names:
            value = values[name]
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
        self._writer.checked(ref.id, ref.direction, sorted(self._checked))

    def _is_confirmed(
        self,
        wrong: Wrong,
        replayer: Replayer,
        launch: Launch,
        plan: LaunchPlan,
        values: Values,
        again: Callable[..., Any] | None,
    ) -> bool:
        """Whether an error that all elements share shows on other data, too. Any other needs no confirmation."""
        coherent = wrong.judgement.coherent
        if coherent is None:
            return True
        inputs = {**values, **self._before}
        others = None if again is None else shaken_data(launch, plan, inputs, values)
        known = None if others is None else self._known(plan, others)
        if again is None or others is None or known is None:
            return coherent.sigmas >= _UNCONFIRMED_SIGMAS
        elsewhere = replayer.instead({n: _copy(v) if isinstance(v, torch.Tensor) else v for n, v in known.items()})
        again(**{name: t for name, t in others.items() if name in launch.operands})
        actual = _result({**values, **others}[wrong.target.variable], wrong.target)
        if actual is None:
            return False
        second = elsewhere.coherent(wrong.target.node, actual)
        return second is not None and coherent.agrees(second)

    def _known(self, plan: LaunchPlan, values: Values) -> Known | None:
        """The nodes that a launch's operands are the values of; None if a shape is not known."""
        known: Known = {}
        for name, held in plan.known.items():
            value = self._in_shape(values[name], name, held)
            if value is None:
                return None
            known.update(dict.fromkeys(held.nodes, value))
        return known

    def _judge(
        self, replayer: Replayer, plan: LaunchPlan, values: Values, known: Known, *, thorough: bool = False
    ) -> list[Wrong]:
        wrong: list[Wrong] = []
        for target in plan.targets:
            actual = _result(values[target.variable], target)
            if actual is None:
                continue
            try:
                judgement = replayer.judge(target.node, actual, thorough=thorough)
            except Unavailable as e:
                self._skip(target, str(e))
            except Exception as e:  # an operator that cannot run here ends the check of this buffer, no more
                log.debug("cannot replay %s", target.buffer, exc_info=True)
                self._skip(target, f"replay failed: {type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}")
            else:
                # What has no node of its own is checked through the first buffer that depends on it.
                self._checked.update((target.buffer, *plan.inner))
                if judgement.outcome is not Outcome.RIGHT:
                    wrong.append(Wrong(target=target, judgement=judgement, actual=actual, operands=known))
        return wrong

    def _report_unsteady(
        self,
        replayer: Replayer,
        launch: Launch,
        plan: LaunchPlan,
        values: Values,
        others: Mapping[str, torch.Tensor],
    ) -> set[str]:
        """Report what came out otherwise when the launch ran again; return the variables that need no other finding.

        One that rounding does not explain is one finding, whether or not it came out right this time.
        """
        reported = set()
        for unsteady in _unsteady(replayer, plan, values, others):
            result = unsteady.target.node if unsteady.target is not None else plan.nodes[-1]
            finding = unsteady_finding(self._program, launch, plan, unsteady)
            self._report(self._program, finding, partial(exhibit_of, replayer, result))
            if unsteady.rounding is False:
                reported.add(unsteady.name)
        return reported

    def _found(
        self, launch: Launch, plan: LaunchPlan, wrong: list[Wrong], through: tuple[str, ...], replayer: Replayer
    ) -> None:
        for each, finding in findings_for(self._program, launch, plan, wrong, through):
            self._report(self._program, finding, partial(exhibit_of, replayer, each.target.node))

    def _try_other_data(
        self, replayer: Replayer, launch: Launch, plan: LaunchPlan, values: Values, again: Callable[..., Any]
    ) -> None:
        """Judge what the kernel makes of data that would show what this call's may hide."""
        for others, filled in other_data(launch, plan, values):
            again(**{name: t for name, t in others.items() if name in launch.operands})
            known = self._known(plan, {**values, **others})
            if known is None:
                return
            elsewhere = replayer.instead(known)
            wrong = self._judge(elsewhere, plan, {**values, **others}, known)
            if wrong:
                self._found(launch, plan, [replace(w, filled=filled) for w in wrong], (), elsewhere)
                break

    def _skip(self, target: Target, reason: str) -> None:
        self._writer.skipped(f"{target.buffer} of graph {self._program.record.label}", reason)


def _unsteady(
    replayer: Replayer, plan: LaunchPlan, values: Values, others: Mapping[str, torch.Tensor]
) -> Iterator[Unsteady]:
    """What the launch made of the same operands when it ran again, where that was something else."""
    for name, other in others.items() if plan.nodes else ():
        target = next((t for t in plan.targets if t.variable == name), None)
        steady = rounding = None
        if target is not None:
            try:
                both = [replayer.judge(target.node, actual) for actual in (values[name], other)]
                steady = not bool(other_bits(both[0].eager, both[1].eager).any())
                rounding = all(_is_noise(j, values[name], other) for j in both)
            except (Unavailable, RuntimeError) as e:
                log.debug("cannot say what eager makes of %s: %s", name, e)
        yield Unsteady(name=name, target=target, first=values[name], second=other, eager=steady, rounding=rounding)


def _is_noise(judgement: Judgement, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results differ by rounding: both are right, or they are wrong by much more than they differ."""
    if judgement.bad is None or judgement.centre is None:
        return True
    spread = (one - other).abs().to(torch.float64) if one.dtype is not torch.bool else (one ^ other).double()
    error = (one.to(judgement.centre.dtype) - judgement.centre).abs()[judgement.bad]
    return float(spread[judgement.bad].max()) <= _NOISE * float(error.max())


def _result(value: Any, target: Target) -> torch.Tensor | None:
    if target.item is not None and isinstance(value, tuple | list):
        value = value[target.item]
    return value if isinstance(value, torch.Tensor) else None


def _copy(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, so that a replay takes the same path through the libraries."""
    return t.detach().clone(memory_format=torch.preserve_format)
