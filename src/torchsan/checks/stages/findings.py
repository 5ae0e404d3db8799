"""From a stage graph that differs to a finding: the step, the nodes it changed, and the numbers that show it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.compare import Difference
from torchsan.checks.stages.localise import Culprit
from torchsan.checks.values.findings import evidence_of
from torchsan.records import Check, Finding, GraphRef, Kind, Severity, Stage
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


def finding_for(culprit: Culprit, graph: GraphRef | None, blamed: list[torch.fx.Node]) -> Finding:
    """Return the finding for a stage graph that differs. `blamed` are the nodes, if they are known already."""
    made = culprit.graph
    previous, after = made.previous, made.changed
    changed = (blamed or _changed(previous, after))[:_MOST_NODES]
    step = f"the pass {after.label}" if after.label else _STEPS[made.stage]
    imprecise = culprit.differences[0].kind is Kind.PRECISION_LOSS
    found = difference_finding(
        f"{step} changed what the program computes",
        culprit.differences,
        stage=made.stage,
        severity=Severity.WARNING if imprecise else Severity.ERROR,
        pass_=after.label,
        graph=graph,
        nodes=tuple(n.name for n in changed),
        ops=tuple(dict.fromkeys(op for n in changed for op in _operators(n))),
        source=source_lines(changed),
    )
    return found if previous is None else replace(found, evidence={**found.evidence, "diff": _diff(previous, after)})


def difference_finding(what: str, differences: Sequence[Difference], **fields: Any) -> Finding:
    """Return the finding that results differ, with the numbers of the first; `fields` are those of a Finding."""
    first = differences[0]
    evidence: dict[str, Any] = {}
    if first.judgement is not None and first.actual is not None:
        evidence = evidence_of(first.judgement, first.actual)
        del evidence["allowed"]  # It is that of one operator after another, not of a kernel.
    evidence["results"] = [d.name for d in differences]
    return Finding(
        kind=first.kind, check=Check.STAGES, message=f"{what}: {_what(first, evidence)}", evidence=evidence, **fields
    )


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
