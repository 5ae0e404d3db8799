"""From a stage graph that differs to a finding: the step, the nodes it changed, and the numbers that show it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from torchsan.checks.picture import item, picture_of
from torchsan.checks.stages.compare import Difference
from torchsan.checks.stages.plan import StageGraph
from torchsan.checks.values.findings import pattern_of
from torchsan.records import Check, Finding, GraphRef, Kind, Severity, Stage
from torchsan.reference.judge import Judgement
from torchsan.torch_internals.snapshots import Snapshot
from torchsan.watch.provenance import operator_name, source_lines

_DIFF_LINES = 80
_STEPS = {
    Stage.CAPTURE: "Dynamo",
    Stage.AOT: "AOTAutograd",
    Stage.JOINT_PASSES: "a joint-graph pass",
    Stage.POST_GRAD_PASSES: "a post-grad pass",
    Stage.KERNEL: "the compiled code",
}


_MOST_NODES = 50


def finding_for(
    culprit: StageGraph, differences: Iterable[Difference], graph: GraphRef | None, blamed: Iterable[torch.fx.Node] = ()
) -> Finding:
    """Return the finding for a stage graph that differs. `blamed` are the nodes, if they are known already."""
    differences = list(differences)
    first = differences[0]
    changed = (list(blamed) or _changed(culprit.previous, culprit.changed))[:_MOST_NODES]
    step = f"the pass {culprit.changed.label}" if culprit.changed.label else _STEPS[culprit.stage]
    evidence = values_of(first)
    evidence["results"] = [d.name for d in differences]
    if culprit.previous is not None:
        evidence["diff"] = _diff(culprit.previous, culprit.changed)
    ops = tuple(dict.fromkeys(op for n in changed for op in _operators(n)))
    return Finding(
        kind=first.kind,
        severity=Severity.WARNING if first.kind is Kind.PRECISION_LOSS else Severity.ERROR,
        check=Check.STAGES,
        stage=culprit.stage,
        pass_=culprit.changed.label,
        graph=graph,
        nodes=tuple(n.name for n in changed),
        ops=ops,
        source=source_lines(changed),
        message=f"{step} changed what the program computes: {_what(first, evidence)}",
        evidence=evidence,
    )


def kernel_finding(
    differences: Iterable[Difference], graph: GraphRef | None, severity: Severity, backend: str
) -> Finding:
    """Return the finding for results that differ although every graph is right."""
    differences = list(differences)
    evidence = values_of(differences[0]) | {"results": [d.name for d in differences]}
    return Finding(
        kind=differences[0].kind,
        severity=severity,
        check=Check.STAGES,
        stage=Stage.KERNEL,
        graph=graph,
        message=f"what {backend} returned does not compute what the graphs do: {_what(differences[0], evidence)}",
        evidence=evidence,
    )


def values_of(difference: Difference) -> dict[str, Any]:
    """The numbers that show a difference."""
    judgement, actual = difference.judgement, difference.actual
    if judgement is None or actual is None or judgement.bad is None:
        return {}
    bad = judgement.bad
    index = tuple(int(i) for i in bad.nonzero()[0].tolist())
    return {
        "elements": actual.numel(),
        "bad": int(bad.sum()),
        "shape": list(actual.shape),
        "dtype": str(actual.dtype).removeprefix("torch."),
        "first_bad": list(index),
        "compiled": item(actual[index]),
        "eager": item(judgement.eager[index]),
        "float64": _at(judgement, index),
        "pattern": pattern_of(bad),
        "picture": picture_of(bad, actual, judgement.eager, judgement.centre, judgement.width),
    }


def _at(judgement: Judgement, index: tuple[int, ...]) -> Any:
    return item(judgement.centre[index]) if judgement.centre is not None else None


def _what(difference: Difference, evidence: dict[str, Any]) -> str:
    if difference.message:
        return difference.message
    place = str(evidence["first_bad"]) if evidence["first_bad"] else ""
    values = f"{difference.name}{place} is {_number(evidence['compiled'])}, not {_number(evidence['eager'])}"
    return f"{values} ({evidence['bad']} of {evidence['elements']} elements)"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _changed(before: Snapshot | None, after: Snapshot) -> list[torch.fx.Node]:
    """The nodes that the step put into the graph, or, if it put none, those it took out."""
    new = list(after.graph.nodes)
    if before is None:
        return [n for n in new if n.op.startswith("call_")]
    old_lines = {_line(n) for n in before.graph.nodes}
    new_lines = {_line(n) for n in new}
    added = [n for n in new if _line(n) not in old_lines and n.op.startswith("call_")]
    return added or [n for n in before.graph.nodes if _line(n) not in new_lines and n.op.startswith("call_")]


def _operators(node: torch.fx.Node) -> list[str]:
    """The operator of a node, and the one that it was before it was decomposed."""
    name = operator_name(node)
    found = [name] if name is not None else []
    original = node.meta.get("original_aten")
    if original is not None and str(original) not in found:
        found.append(str(original))
    return found


def _diff(before: Snapshot, after: Snapshot) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), "before", "after", n=1, lineterm="")
    found = [line for line in lines if not line.startswith("@@")]
    if len(found) > _DIFF_LINES:
        found = [*found[:_DIFF_LINES], f"… {len(found) - _DIFF_LINES} more lines"]
    return "\n".join(found)


def _lines(snapshot: Snapshot) -> list[str]:
    return [_line(n) for n in snapshot.graph.nodes if n.op != "placeholder"]


def _line(node: torch.fx.Node) -> str:
    if node.op == "output":
        return f"return {node.args[0]}"
    arguments = [str(a) for a in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", None)
    name = str(node.target) if hasattr(node.target, "_schema") else str(target or node.target)
    return f"{node.name} = {name}({', '.join(arguments)})"
