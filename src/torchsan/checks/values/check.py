"""Judges every launch of a compiled program by replaying what it computes from the values that it actually had."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from torchsan.checks.values.evidence import finding_for
from torchsan.checks.values.plan import LaunchPlan, Target
from torchsan.checks.values.replay import Arithmetic, Unavailable, replay
from torchsan.instruments.observer import CallWatch, CompiledProgram, Values
from torchsan.instruments.program import Launch
from torchsan.recording import Writer
from torchsan.tensors.judge import Judgement, Outcome, agrees, judge
from torchsan.torch_internals.operators import undisturbed

__all__ = ["ValuesWatch"]

log = logging.getLogger(__name__)

_FEW, _MANY = 4, 16
"""How many nudged replays at first, and how many before something is called wrong."""

Known = dict[torch.fx.Node, Any]


class ValuesWatch(CallWatch):
    """Checks one call. Holds the operands of one launch at a time, and those of launches with unfinished results."""

    def __init__(
        self,
        writer: Writer,
        program: CompiledProgram,
        plans: Mapping[int, LaunchPlan],
    ) -> None:
        self._writer = writer
        self._program = program
        self._plans = plans
        self._before: dict[str, Any] = {}
        self._kept: dict[str, Known] = {}
        self._numbers: dict[str, dict[Any, Any]] = {}
        self._checked: set[str] = set()

    def enter(self, function: str, inputs: Values) -> None:
        graph = self._program.graphs.get(function)
        if graph is not None:
            self._numbers[function] = _symbols(graph.module, list(inputs.values()))

    def before(self, function: str, launch: Launch, values: Values) -> None:
        plan_ = self._plans.get(launch.nth)
        self._before = {}
        if plan_ is None:
            return
        overwritten = set(launch.writes)
        with undisturbed():
            for name in plan_.known:
                if name in overwritten and isinstance(values[name], torch.Tensor):
                    self._before[name] = _copy(values[name])

    def after(self, function: str, launch: Launch, values: Values) -> None:
        plan_ = self._plans.get(launch.nth)
        if plan_ is None:
            return
        known: Known = {}
        for name in plan_.inner:
            known.update(self._kept.get(name, {}))
        for name, nodes in plan_.known.items():
            value = self._before.get(name, values[name])
            known.update(dict.fromkeys(nodes, value))
        with undisturbed():
            self._judge(function, launch, plan_, known, values)
            if plan_.keep:
                copies = {n: _copy(v) if isinstance(v, torch.Tensor) else v for n, v in known.items()}
                self._kept.update(dict.fromkeys(plan_.keep, copies))
        self._before = {}

    def leave(self, function: str, outputs: Any) -> None:
        if function == "call":
            self._kept.clear()

    def close(self, error: BaseException | None) -> None:
        ref = self._program.ref
        self._writer.checked(ref.id, ref.direction, sorted(self._checked))

    def _judge(self, function: str, launch: Launch, plan_: LaunchPlan, known: Known, values: Values) -> None:
        actual = self._actual(launch, plan_, values)
        run = self._replayer(function, known)
        eager: dict[Target, torch.Tensor] = {}
        for target, result in actual.items():
            try:
                expected = run([target.node], Arithmetic.EAGER, 0)[target.node]
            except Unavailable as e:
                self._skip(target, str(e))
                continue
            except Exception as e:  # noqa: BLE001  # an operator that cannot run here ends the check of this buffer, no more
                self._skip(target, f"replay failed: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
                continue
            if not isinstance(expected, torch.Tensor) or expected.shape != result.shape:
                self._skip(target, f"the buffer has another shape than its node {target.node.name}")
            elif expected.dtype != result.dtype:
                self._skip(target, f"the buffer is {result.dtype}, its node {target.node.name} {expected.dtype}")
            else:
                self._checked.add(target.buffer)
                if not agrees(result, expected):
                    eager[target] = expected
        for target, expected in eager.items():
            judgement = self._settle(run, target, actual[target], expected)
            if judgement is not None and judgement.outcome is not Outcome.RIGHT:
                self._report(launch, plan_, target, judgement, actual[target], expected)

    def _settle(
        self, run: Callable[..., dict[Any, Any]], target: Target, result: torch.Tensor, eager: torch.Tensor
    ) -> Judgement | None:
        try:
            exact = run([target.node], Arithmetic.EXACT, 0)[target.node]
            nudged: list[torch.Tensor] = []
            judgement = None
            for wanted in (_FEW, _MANY):
                while len(nudged) < wanted:
                    nudged.append(run([target.node], Arithmetic.NUDGED, len(nudged) + 1)[target.node])
                judgement = judge(result, eager, exact, nudged)
                if judgement.outcome is Outcome.RIGHT:
                    break
        except Exception as e:  # what cannot be replayed in another arithmetic cannot be judged
            log.debug("cannot judge %s", target.buffer, exc_info=True)
            self._skip(target, f"differs from eager, but cannot be judged: {type(e).__name__}: {str(e)[:120]}")
            self._checked.discard(target.buffer)
            return None
        return judgement

    def _actual(self, launch: Launch, plan_: LaunchPlan, values: Values) -> dict[Target, torch.Tensor]:
        found = {}
        for target in plan_.targets:
            value = values[target.variable]
            if target.item is not None and isinstance(value, tuple | list):
                value = value[target.item]
            if isinstance(value, torch.Tensor):
                found[target] = value
        return found

    def _replayer(self, function: str, known: Known) -> Callable[..., dict[Any, Any]]:
        symbols = self._numbers.get(function, {})
        module = self._program.graphs[function].module

        def attribute(name: str) -> Any:
            constants = self._program.constants
            return constants[name] if isinstance(constants.get(name), torch.Tensor) else _attribute(module, name)

        def run(targets: list[torch.fx.Node], arithmetic: Arithmetic, seed: int) -> dict[Any, Any]:
            return replay(
                targets,
                known,
                arithmetic,
                attributes=attribute,
                symbol=lambda value: _number(value, symbols),
                seed=seed,
            )

        return run

    def _skip(self, target: Target, reason: str) -> None:
        self._writer.skipped(f"{target.buffer} of graph {self._program.record.label}", reason)

    def _report(
        self,
        launch: Launch,
        plan_: LaunchPlan,
        target: Target,
        judgement: Judgement,
        actual: torch.Tensor,
        eager: torch.Tensor,
    ) -> None:
        self._writer.finding(finding_for(self._program, launch, plan_, target, judgement, actual, eager))


def _copy(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, so that a replay takes the same path through the libraries."""
    return t.detach().clone(memory_format=torch.preserve_format)


def _attribute(module: torch.nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _symbols(module: torch.fx.GraphModule, inputs: list[Any]) -> dict[Any, Any]:
    """The symbolic sizes of a graph, from the inputs that it was called with."""
    symbols: dict[Any, Any] = {}
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=False):
        meta = node.meta.get("val")
        if isinstance(meta, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs: list[tuple[Any, Any]] = list(zip(meta.shape, value.shape, strict=False))
            pairs += zip(meta.stride(), value.stride(), strict=False)
            pairs.append((meta.storage_offset(), value.storage_offset()))
        else:
            pairs = [(meta, value)]
        for symbolic, actual in pairs:
            expression = getattr(getattr(symbolic, "node", None), "expr", None)
            if expression is not None and getattr(expression, "is_Symbol", False) and not math.isnan(float(actual)):
                symbols.setdefault(expression, actual)
    return symbols


def _number(value: Any, symbols: Mapping[Any, Any]) -> Any:
    """The value of a symbolic number, or None if it depends on something unknown."""
    if isinstance(value, int | float | bool):
        return value
    expression = value.node.expr
    result = expression.xreplace(dict(symbols)) if hasattr(expression, "xreplace") else expression
    if getattr(result, "free_symbols", None):
        return None
    if isinstance(value, torch.SymBool):
        return bool(result)
    return int(result) if isinstance(value, torch.SymInt) else float(result)
