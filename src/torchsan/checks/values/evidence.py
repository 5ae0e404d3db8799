"""From a judgement to a finding: what is wrong, where, and the numbers that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchsan.checks.values.plan import LaunchPlan, Target
from torchsan.instruments.observer import CompiledProgram
from torchsan.instruments.program import Launch
from torchsan.instruments.provenance import operator_name, source_lines
from torchsan.records import Check, Finding, Kind, Severity, Stage
from torchsan.tensors.judge import Judgement, Outcome

__all__ = ["Wrong", "findings_for"]

_KINDS = {
    Outcome.WRONG: (Kind.WRONG_VALUES, Severity.ERROR),
    Outcome.NON_FINITE: (Kind.NON_FINITE, Severity.ERROR),
    Outcome.IMPRECISE: (Kind.PRECISION_LOSS, Severity.WARNING),
    Outcome.UNDECIDED: (Kind.WRONG_VALUES, Severity.NOTE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A result that was judged to be something other than right."""

    target: Target
    judgement: Judgement
    actual: torch.Tensor
    eager: torch.Tensor


def findings_for(
    program: CompiledProgram, launch: Launch, plan: LaunchPlan, wrong: list[Wrong], through: tuple[str, ...]
) -> Iterator[tuple[Wrong, Finding]]:
    """The findings that a launch amounts to: one for each wrong result that does not follow from another of them.

    `through` are the kernels that computed operands without a node of their own: they are under suspicion as well.
    """
    nodes = {w.target: _nodes(plan, w.target) for w in wrong}
    cleared = _cleared(plan, wrong)
    for w in wrong:
        others = {o.target.node for o in wrong if o is not w}
        if others & nodes[w.target]:
            continue
        suspects = (nodes[w.target] - cleared) | {w.target.node}
        yield w, _finding(program, launch, w, _in_order(suspects), _in_order(nodes[w.target]), through)


def _finding(
    program: CompiledProgram,
    launch: Launch,
    wrong: Wrong,
    suspects: list[torch.fx.Node],
    computed: list[torch.fx.Node],
    through: tuple[str, ...],
) -> Finding:
    kind, severity = _KINDS[wrong.judgement.outcome]
    evidence = _evidence(wrong.judgement, wrong.actual, wrong.eager)
    evidence["computes"] = [n.name for n in computed]
    evidence["through"] = list(through)
    evidence["text"] = list(_text(evidence))
    ops = tuple(dict.fromkeys(op for n in suspects if (op := operator_name(n)) is not None))
    return Finding(
        kind=kind,
        severity=severity,
        check=Check.VALUES,
        stage=Stage.KERNEL,
        graph=program.ref,
        kernel=launch.kernel,
        buffer=wrong.target.buffer,
        nodes=tuple(n.name for n in suspects),
        ops=ops,
        source=source_lines(suspects),
        message=_message(wrong.judgement, launch, wrong.target, evidence),
        evidence=evidence,
    )


def _nodes(plan: LaunchPlan, target: Target) -> set[torch.fx.Node]:
    """The nodes of the launch that the target is computed from, itself included."""
    inside = set(plan.nodes)
    found: set[torch.fx.Node] = set()
    stack = [target.node]
    while stack:
        node = stack.pop()
        if node in found or (node is not target.node and node not in inside):
            continue
        found.add(node)
        stack += node.all_input_nodes
    return found


def _cleared(plan: LaunchPlan, wrong: list[Wrong]) -> set[torch.fx.Node]:
    """What the launch's right results are computed from: it is right, then, and not to blame for the wrong ones."""
    bad = {w.target for w in wrong}
    return {node for target in plan.targets if target not in bad for node in _nodes(plan, target)}


def _in_order(nodes: set[torch.fx.Node]) -> list[torch.fx.Node]:
    graph = next(iter(nodes)).graph
    return [node for node in graph.nodes if node in nodes]


def _message(judgement: Judgement, launch: Launch, target: Target, evidence: dict[str, Any]) -> str:
    share = f"{evidence['bad']} of {evidence['elements']} elements"
    what = {
        Outcome.WRONG: "has wrong values in",
        Outcome.NON_FINITE: "turned finite numbers into NaN or Inf in",
        Outcome.IMPRECISE: "loses far more precision than eager in",
        Outcome.UNDECIDED: "differs from eager, by too little or where eager is too unreliable to tell, in",
    }[judgement.outcome]
    return f"{launch.kernel} {what} {share} of {target.buffer} ({target.node.name})"


def _evidence(judgement: Judgement, actual: torch.Tensor, eager: torch.Tensor) -> dict[str, Any]:
    bad, centre, width = judgement.bad, judgement.centre, judgement.width
    assert bad is not None
    assert centre is not None
    assert width is not None
    positions = bad.nonzero()
    index = tuple(int(i) for i in positions[0].tolist())
    return {
        "elements": actual.numel(),
        "bad": int(bad.sum()),
        "shape": list(actual.shape),
        "dtype": str(actual.dtype).removeprefix("torch."),
        "first_bad": list(index),
        "compiled": _item(actual[index]),
        "eager": _item(eager[index]),
        "float64": _item(centre[index]),
        "allowed": _item(width[index]),
        "pattern": pattern_of(bad),
    }


def _text(evidence: dict[str, Any]) -> Iterator[str]:
    shape = ", ".join(map(str, evidence["shape"]))
    yield f"wrong: {evidence['pattern']} of {evidence['dtype']}[{shape}] ({evidence['bad']} of {evidence['elements']})"
    values = [f"{name} {_short(evidence[name])}" for name in ("compiled", "eager", "float64")]
    yield f"at {evidence['first_bad']}: {', '.join(values)}; rounding explains ±{_short(evidence['allowed'])}"
    if evidence["through"]:
        yield f"or in a kernel before it, whose result has no value of its own: {', '.join(evidence['through'])}"


def _short(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _item(t: torch.Tensor) -> Any:
    return t.to(torch.float64).item() if t.is_floating_point() else t.item()


def pattern_of(bad: torch.Tensor) -> str:
    """Where the bad elements lie, in words."""
    if bool(bad.all()):
        return "all elements"
    if int(bad.sum()) == 1:
        return "one element"
    for dim in range(bad.dim()):
        others = [d for d in range(bad.dim()) if d != dim]
        along = bad.any(dim=others) if others else bad
        hit = along.nonzero().flatten().tolist()
        size = bad.shape[dim]
        full = bool(bad.select(dim, hit[0]).all()) if others else True
        name = f"dimension {dim}"
        if len(hit) == 1 and others:
            return f"{'all of' if full else 'only in'} index {hit[0]} of {name}"
        if len(hit) < size and hit == list(range(size - len(hit), size)):
            return f"the last {len(hit)} of {size} along {name}"
        if len(hit) < size and hit == list(range(len(hit))):
            return f"the first {len(hit)} of {size} along {name}"
        if len(hit) == 2 and hit == [0, size - 1]:
            return f"both edges of {name}"
    return "scattered"
