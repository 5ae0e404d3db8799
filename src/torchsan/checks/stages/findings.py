"""What differs between two runs of a program, and the finding for it: the step, the nodes it changed, the numbers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.plan import StageGraph
from torchsan.checks.values.findings import at_place, evidence_of, flip_evidence, flip_text
from torchsan.graphs.nodes import names_of, unnamed
from torchsan.records import Check, Finding, GraphRef, Kind, Severity, Stage
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import Results
from torchsan.reference.distances import same as same_numbers
from torchsan.reference.flips import Flip
from torchsan.reference.judge import Judgement, Outcome, agrees, differ_in_float64, same_in_float64, settle
from torchsan.torch_internals.snapshots import Snapshot

_DIFF_LINES = 80
_STEPS = {
    Stage.CAPTURE: "Dynamo",
    Stage.AOT: "AOTAutograd",
    Stage.JOINT_PASSES: "a joint-graph pass",
    Stage.POST_GRAD_PASSES: "a post-grad pass",
    Stage.KERNEL: "the compiled code",
}
_MOST_NODES = 50
_PLAIN = 0.1
"""The part of a result's norm that rounding does not take it away by, where nothing else tells."""
_KINDS = {Outcome.NON_FINITE: Kind.NON_FINITE, Outcome.IMPRECISE: Kind.PRECISION_LOSS}

Rerun = Callable[[Arithmetic, int], Results]
"""Runs a program again in an arithmetic, with the noise of a seed. Raises Unavailable where it has no meaning in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One result that differs, and how bad that is. `judgement` and `actual` are there for values."""

    name: str
    kind: Kind
    message: str = ""
    judgement: Judgement | None = None
    actual: torch.Tensor | None = None
    severity: Severity = Severity.ERROR

    def explained_by_rounding(self) -> Difference:
        """The same as a loss of precision, if it is a difference of real numbers."""
        real = self.actual is not None and self.actual.is_floating_point()
        return replace(self, kind=Kind.PRECISION_LOSS) if real else self


def same(a: Results, b: Results) -> bool:
    """Whether they differ by no more than the last bits of the results themselves."""
    if structural(a, b) or a.tensors.keys() != b.tensors.keys():
        return False
    pairs = (pair(a, b, name) for name in a.tensors)
    return all(agrees(x, y) for x, y in pairs if x is not None and y is not None)


def structural(actual: Results, expected: Results, *, dtypes: bool = True) -> list[Difference]:
    """What differs in kind: other shapes or dtypes, other numbers, other aliases of inputs."""
    found = []
    for name in expected.tensors:
        a, e = actual.tensors.get(name), expected.tensors[name]
        if a is not None and e is not None and (a.shape != e.shape or (dtypes and a.dtype != e.dtype)):
            message = f"{name} is {_meta(a)}, not {_meta(e)}"
            found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
    for name, value in expected.others.items():
        other = actual.others.get(name)
        if isinstance(value, int) and isinstance(other, int) and other != value:
            message = f"{name} is {other}, not {value}"
            found.append(Difference(name=name, kind=Kind.WRONG_VALUES, message=message))
    for output, source in sorted(actual.aliases - expected.aliases):
        message = f"{output} shares memory with {source}, which it does not in the program"
        found.append(Difference(name=output, kind=Kind.UNDECLARED_ALIAS, message=message))
    for output, source in sorted(expected.aliases - actual.aliases):
        message = f"{output} does not share memory with {source}, which it does in the program"
        found.append(Difference(name=output, kind=Kind.METADATA_MISMATCH, message=message))
    return found


def apart_in_float64(actual: Results, expected: Results, *, double: bool = False) -> list[str]:
    """The results of two float64 runs that are not the same number. Those of other shapes are left out.

    `double` tells that the program computes in float64 itself.
    """
    pairs = ((name, *pair(actual, expected, name)) for name in expected.tensors)
    return [
        name
        for name, a, e in pairs
        if a is not None and e is not None and a.shape == e.shape and not same_in_float64(a, e, double=double)
    ]


def wrong(actual: Results, names: Sequence[str], rerun: Rerun) -> list[Difference]:
    """Those of the named results that rounding cannot explain; `rerun` is asked for what they should be."""
    expected = rerun(Arithmetic.EAGER, 0)
    found = []
    for name in names:
        a, eager = pair(actual, expected, name)
        if a is None or eager is None:
            continue
        a = a.to(eager.dtype)

        def run(arithmetic: Arithmetic, seed: int, name: str = name, eager: torch.Tensor = eager) -> Any:
            return eager if arithmetic is Arithmetic.EAGER else pair(rerun(arithmetic, seed), expected, name)[0]

        try:
            judgement = settle(run, a)
        except Unavailable:
            continue
        if judgement.outcome is not Outcome.RIGHT:
            kind = _KINDS.get(judgement.outcome, Kind.WRONG_VALUES)
            found.append(Difference(name=name, kind=kind, judgement=judgement, actual=a))
    return found


def wrong_in_float64(
    actual: Results, expected: Results, names: Sequence[str], rerun: Rerun, *, double: bool = False
) -> list[Difference]:
    """Those of the named results of two float64 runs that constants rounded to float32 do not explain.

    `double` tells that the program computes in float64 itself.
    """
    found = []
    for name in names:
        a, e = pair(actual, expected, name)
        assert a is not None
        assert e is not None

        def run(arithmetic: Arithmetic, seed: int, name: str = name) -> Any:
            return pair(rerun(arithmetic, seed), expected, name)[0]

        judgement = differ_in_float64(run, a, e, double=double)
        if judgement.outcome is not Outcome.RIGHT:
            kind = _KINDS.get(judgement.outcome, Kind.WRONG_VALUES)
            found.append(Difference(name=name, kind=kind, judgement=judgement, actual=a))
    return found


def plainly_other(actual: Results, expected: Results, names: Iterable[str]) -> list[Difference]:
    """Those of the named results that no rounding could have given: for what no other arithmetic is asked about.

    Real numbers alone: a decision that rounding takes otherwise changes whole numbers by as much as an error does.
    """
    found = []
    for name in names:
        a, e = pair(actual, expected, name)
        if a is None or e is None or a.shape != e.shape or not e.is_floating_point():
            continue
        apart = ~same_numbers(a, e)
        mine, theirs = a.double(), e.double()
        size = theirs[torch.isfinite(theirs)].norm()
        if bool(apart.any()) and not float((mine - theirs)[apart].norm()) <= _PLAIN * float(size):
            # Elements that rounding alone has changed are not counted.
            plain = apart & ~((mine - theirs).abs() <= _PLAIN * theirs.abs())
            plain = plain if bool(plain.any()) else apart
            distances = torch.where(plain, (mine - theirs).abs().nan_to_num(torch.inf), -1)
            furthest = tuple(int(i) for i in torch.unravel_index(distances.argmax(), distances.shape))
            compiled, eager = _told_apart(float(mine[furthest]), float(theirs[furthest]))
            place = f" at {list(furthest)}" if furthest else ""
            message = f"{name}{place} is {compiled}, not {eager} ({int(plain.sum())} of {a.numel()} elements)"
            found.append(Difference(name=name, kind=Kind.WRONG_VALUES, message=message))
    return found


def pair(a: Results, b: Results, name: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """One result of two runs. No gradient is a gradient of zeros, if the other run has one."""
    x, y = a.tensors.get(name), b.tensors.get(name)
    if name.startswith("gradient"):
        if x is None and y is not None:
            x = torch.zeros_like(y)
        elif y is None and x is not None:
            y = torch.zeros_like(x)
    return x, y


def _meta(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def stage_finding(
    made: StageGraph, differences: Sequence[Difference], graph: GraphRef | None, blamed: list[torch.fx.Node]
) -> Finding:
    """Return the finding for a stage graph that differs. `blamed` are the nodes, if they are known already."""
    previous, after = made.previous, made.changed
    changed = blamed or _changed(previous, after)
    step = f"the pass {after.label}" if after.label else _STEPS[made.stage]
    imprecise = differences[0].kind is Kind.PRECISION_LOSS
    found = difference_finding(
        f"{step} changed what the program computes",
        differences,
        stage=made.stage,
        severity=Severity.WARNING if imprecise else Severity.ERROR,
        pass_=after.label,
        graph=graph,
        about=changed,
    )
    evidence = found.evidence | {"pass": {"name": after.pass_, "patterns": list(after.patterns)}}
    if after.function is not None:
        evidence["pass"]["function"] = after.function
        evidence["text"] = [*evidence["text"], f"the pass is {after.function}"]
    if previous is not None:
        evidence["diff"] = _diff(previous, after)
        evidence["text"] = [*evidence["text"], "what it did to the graph:", *evidence["diff"].splitlines()]
    return replace(found, evidence=evidence)


def flip_note(flip: Flip, name: str, differ: int, elements: int, kernel: str | None, graph: GraphRef | None) -> Finding:
    """Return the note that a result is another than eager's because an operator may go either way."""
    evidence: dict[str, Any] = {"flip": flip_evidence(flip, differ, elements, kernel)}
    text = flip_text(evidence["flip"])
    names = names_of([flip.node], decomposed=True)
    evidence |= unnamed(names)
    message = f"{name} differs from eager in {differ} of {elements} elements, and rounding explains it: {text}"
    return Finding(
        kind=Kind.PRECISION_LOSS,
        severity=Severity.NOTE,
        check=Check.STAGES,
        stage=Stage.KERNEL,
        graph=graph,
        kernel=kernel,
        message=message,
        evidence=evidence | {"text": []},  # The message says it.
        **names,
    )


def difference_finding(
    what: str, differences: Sequence[Difference], *, about: Sequence[Any] = (), **fields: Any
) -> Finding:
    """Return the finding that results differ, with the numbers of the first, `about` these nodes.

    `fields` are others of a Finding.
    """
    first = differences[0]
    evidence: dict[str, Any] = {}
    if first.judgement is not None and first.actual is not None:
        evidence = evidence_of(first.judgement, first.actual)
        del evidence["allowed"]  # It is that of one operator after another, not of a kernel.
    evidence["results"] = [d.name for d in differences]
    message = f"{what}: {_what(first, evidence)}"
    names = names_of(about[:_MOST_NODES], decomposed=True)
    names |= {key: fields.pop(key) for key in names if key in fields}
    evidence |= unnamed(names)
    evidence["text"] = list(_text(evidence))
    return Finding(kind=first.kind, check=Check.STAGES, message=message, evidence=evidence, **names, **fields)


def because_of(flip: Finding, what: str) -> tuple[str, dict[str, Any]]:
    """What is said, and the fields of a finding, where a kernel was noted to decide otherwise than eager.

    Rounding explains what it decided, from the numbers that it had, and not what has come of that: the program decides
    as eager does however its numbers are rounded, since each is rounded once and then is what everybody reads.
    """
    fields = {name: getattr(flip, name) for name in ("stage", "graph", "kernel", "nodes", "ops", "source")}
    return f"{what}, where {flip.evidence['flip']['node']} goes another way", fields


def _text(evidence: dict[str, Any]) -> Iterator[str]:
    """The evidence as people read it."""
    if "compiled" in evidence:
        names = [name for name in ("compiled", "eager", "float64") if name in evidence]
        values = map(" ".join, zip(names, _told_apart(*(evidence[name] for name in names)), strict=True))
        yield f"{at_place(evidence)}{', '.join(values)}"
    results = evidence["results"]
    if len(results) > 1:
        more = f" and {len(results) - _MOST_RESULTS} more" if len(results) > _MOST_RESULTS else ""
        yield f"{len(results)} results differ: {', '.join(results[:_MOST_RESULTS])}{more}"
    if "unnamed" in evidence:
        yield str(evidence["unnamed"])


_MOST_RESULTS = 6


def following(finding: Finding, cause: str | None) -> Finding:
    """Return a finding that follows from another, of this id, if there is one."""
    return finding if cause is None else replace(finding, evidence=finding.evidence | {"follows": cause})


def _what(difference: Difference, evidence: dict[str, Any]) -> str:
    if difference.message:
        return difference.message
    place = f" at {evidence['first_bad']}" if evidence["first_bad"] else ""
    compiled, eager = _told_apart(evidence["compiled"], evidence["eager"])
    return f"{difference.name}{place} is {compiled}, not {eager} ({evidence['bad']} of {evidence['elements']} elements)"


def _told_apart(*values: Any) -> list[str]:
    """Numbers with as many digits as it takes to tell the first two apart, and six at least."""
    for digits in (6, 9, 12, 17):
        texts = [f"{v:.{digits}g}" if isinstance(v, float) else str(v) for v in values]
        if len(set(texts[:2])) > 1:
            break
    return texts


def _changed(before: Snapshot | None, after: Snapshot) -> list[torch.fx.Node]:
    """The nodes that the step put into the graph, and those whose values they read in its place.

    If it put none there, those it took out; if it did neither, those it moved. All of them if that tells nothing: a
    step that only returns something else, say.
    """
    calls = _calls(after.graph.nodes)
    if before is None:
        return calls
    old_lines = {_line(n) for n in before.graph.nodes}
    new_lines = {_line(n) for n in after.graph.nodes}
    added = [n for n in calls if _line(n) not in old_lines]
    replaced = _replaced(before, added)
    return (
        [n for n in calls if n in added or n.name in replaced]
        or [n for n in _calls(before.graph.nodes) if _line(n) not in new_lines]
        or _moved(before, after)
        or _calls(after.graph.output_node().all_input_nodes)
        or calls
    )


def _calls(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    return [n for n in nodes if n.op.startswith("call_")]


def _replaced(before: Snapshot, added: list[torch.fx.Node]) -> set[str]:
    """The names of what a node read before the step, and reads no longer because something stands between them."""
    between = {n.name for n in added}
    reads = {n.name: {p.name for p in n.all_input_nodes} for n in before.graph.nodes}
    lost: set[str] = set()
    for node in added:
        now = {p.name for p in node.all_input_nodes}
        if now & between:
            lost |= reads.get(node.name, now) - now
    return lost


def _moved(before: Snapshot, after: Snapshot) -> list[torch.fx.Node]:
    nodes = _calls(after.graph.nodes)
    old = [_line(n) for n in _calls(before.graph.nodes)]
    matcher = difflib.SequenceMatcher(None, old, [_line(n) for n in nodes], autojunk=False)
    return [n for tag, _, _, low, high in matcher.get_opcodes() if tag != "equal" for n in nodes[low:high]]


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
