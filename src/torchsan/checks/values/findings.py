"""From a judgement to a finding: what is wrong, where, and the numbers that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from torchsan.checks.picture import item, picture_of
from torchsan.checks.values.other_inputs import other_bits
from torchsan.checks.values.plan import LaunchPlan, Target
from torchsan.graphs.nodes import in_words, names_of, operator_name, unnamed
from torchsan.records import Check, Finding, Kind, Severity, Stage
from torchsan.reference.arithmetic import Arithmetic
from torchsan.reference.coherence import Coherent, Slope
from torchsan.reference.flips import Flip
from torchsan.reference.judge import Judgement, Outcome
from torchsan.reference.replay import needed
from torchsan.torch_internals.operators import OutsideOfTensors, is_users_kernel
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CompiledProgram

_KINDS = {
    Outcome.WRONG: (Kind.WRONG_VALUES, Severity.ERROR),
    Outcome.NON_FINITE: (Kind.NON_FINITE, Severity.ERROR),
    Outcome.IMPRECISE: (Kind.PRECISION_LOSS, Severity.WARNING),
    Outcome.EAGER_WRONG: (Kind.WRONG_VALUES, Severity.WARNING),
    Outcome.UNDECIDED: (Kind.PRECISION_LOSS, Severity.NOTE),
}

_SHOWN = 4
"""How many operands are shown with their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A result that was judged to be something other than right."""

    target: Target
    judgement: Judgement
    actual: torch.Tensor
    operands: Mapping[torch.fx.Node, Any]
    """What the launch had to compute from."""
    filled: Mapping[str, Any] = field(default_factory=dict)
    """What torchsan filled the kernel's inputs with to see it; empty if it is wrong with the program's own data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsteady:
    """A variable that a launch leaves otherwise when it runs again from the same memory.

    `eager` tells whether eager gives the same twice, `rounding` whether rounding explains both; None if not known.
    """

    name: str
    target: Target | None
    first: torch.Tensor
    second: torch.Tensor
    eager: bool | None
    rounding: bool | None
    hardware: Mapping[str, Any] | None = None
    """Where it was computed, if it came out otherwise once and the same every other time."""
    ordered: bool = False
    """Whether the order of atomic additions explains it."""

    @property
    def severity(self) -> Severity:
        """An error if a result may be wrong, or if the user asked for the same results every time."""
        if self.eager is False:
            return Severity.NOTE
        if self.rounding is False or torch.are_deterministic_algorithms_enabled():
            return Severity.ERROR
        return Severity.NOTE if self.ordered else Severity.WARNING


def unsteady_finding(program: CompiledProgram, launch: Launch, plan: LaunchPlan, unsteady: Unsteady) -> Finding:
    """The finding that a launch amounts to whose result is another every time."""
    bad = other_bits(unsteady.first, unsteady.second)
    evidence = evidence_at(bad, {"first": unsteady.first, "second": unsteady.second})
    evidence |= {"eager_repeats": unsteady.eager, "rounding_explains": unsteady.rounding}
    explained = {
        True: "both are right within rounding",
        False: "rounding does not explain both",
        None: "whether both are right within rounding cannot be told",
    }
    repeats = {
        True: "eager gives the same result twice",
        False: "eager gives other results each time, too",
        None: "whether eager gives the same result twice was not tried",
    }
    evidence["text"] = [
        f"{at_place(evidence)}first {_short(evidence['first'])}, again {_short(evidence['second'])}",
        f"{explained[unsteady.rounding]}; {repeats[unsteady.eager]}",
    ]
    if unsteady.ordered:
        evidence["text"].append("the kernel adds atomically: in which order threads add is not the same every time")
    share = f"{evidence['bad']} of {evidence['elements']} elements of {unsteady.name}"
    where = ""
    if unsteady.hardware is not None:
        evidence["hardware"] = dict(unsteady.hardware)
        where = f", once in {unsteady.hardware['launches']} launches on {unsteady.hardware['host']}"
        evidence["text"].append(_machine(unsteady.hardware))
    return _finding(
        program,
        launch,
        _in_order(_nodes(plan, unsteady.target)) if unsteady.target else list(plan.nodes),
        evidence,
        kind=Kind.NONDETERMINISTIC,
        stage=Stage.KERNEL,
        severity=unsteady.severity,
        buffer=unsteady.name if unsteady.target is None else unsteady.target.buffer,
        message=f"{launch.kernel} gives another result when it is launched again with equal inputs, in {share}{where}",
    )


def _machine(hardware: Mapping[str, Any]) -> str:
    """Where something was computed that may be a fault of the machine, in words."""
    parts = [f"host {hardware['host']}", str(hardware["cpu"])]
    parts += [f"core {hardware['core']}"] if hardware["core"] is not None else []
    parts += [f"device {hardware['device']}"] if "device" in hardware else []
    return f"a race, or a fault of the machine: {', '.join(parts)}"


def outside_finding(
    program: CompiledProgram, launch: Launch, plan: LaunchPlan, target: Target, outside: OutsideOfTensors
) -> Finding:
    """The finding that a user's kernel reads what is in none of its tensors."""
    return _finding(
        program,
        launch,
        _in_order(_nodes(plan, target)),
        {"text": ["its own source does so, run by Triton's interpreter with what the program gives it"]},
        kind=Kind.OUT_OF_BOUNDS_READ,
        stage=Stage.KERNEL,
        severity=Severity.ERROR,
        buffer=target.buffer,
        message=f"{launch.kernel} reads {outside.where}",
    )


def flip_finding(
    program: CompiledProgram, launch: Launch, target: Target, flip: Flip, differ: int, elements: int
) -> Finding:
    """The note that a result is another than eager's because an operator in the launch may go either way."""
    what = f"{launch.kernel} gives another answer than eager in {differ} of {elements} elements of {target.buffer}"
    evidence = {"flip": flip_evidence(flip, differ, elements, launch.kernel)}
    return _finding(
        program,
        launch,
        [flip.node],
        evidence | {"text": []},  # The message says it.
        kind=Kind.PRECISION_LOSS,
        stage=Stage.KERNEL,
        severity=Severity.NOTE,
        buffer=target.buffer,
        message=f"{what} ({target.node.name}), and rounding explains it: {flip_text(evidence['flip'], launch.kernel)}",
    )


def flip_evidence(flip: Flip, differ: int, elements: int, kernel: str | None) -> dict[str, Any]:
    """What is known of a jump: the operator, in how many elements it goes either way, by how little, and from where."""
    return {
        "node": flip.node.name,
        "op": operator_name(flip.node),
        "margin": flip.margin,
        "either_way": flip.count,
        "decides": flip.elements,
        "flipped": differ,
        "elements": elements,
        "upstream": {"kernel": kernel, "nodes": [n.name for n in flip.upstream]},
    }


def flip_text(flip: Mapping[str, Any], said: str | None = None) -> str:
    """`argmax turns on a difference of 0.5 units in the last place of mul, which cpp_fused_argmax_mul_0 computes`.

    A kernel that was `said` already is not named again.
    """
    margin = "the last bits" if flip["margin"] is None else f"{flip['margin']:.2g} units in the last place"
    nodes, kernel = ", ".join(flip["upstream"]["nodes"]), flip["upstream"]["kernel"]
    computed = f", which {kernel} computes" if kernel and kernel != said else ""
    return f"{flip['node']} turns on a difference of {margin} of {nodes}{computed}"


def findings_for(
    program: CompiledProgram, launch: Launch, plan: LaunchPlan, wrong: list[Wrong], through: tuple[str, ...]
) -> Iterator[tuple[Wrong, Finding]]:
    """The findings that a launch amounts to: one for each wrong result that does not follow from another of them.

    `through` are the kernels that computed operands without a node of their own: they are under suspicion as well.
    """
    nodes = {w.target: _nodes(plan, w.target) for w in wrong}
    cleared = _cleared(plan, wrong)
    for w in wrong:
        others = {node for o in wrong if o is not w for node in (o.target.node, *o.target.also)}
        if others & {*nodes[w.target], *needed((w.target.node,), w.operands)}:
            continue
        # What is right within the rounding of a sum clears nothing of what is copied beside it.
        left = nodes[w.target] - cleared
        suspects = _named(left) or _named(nodes[w.target]) or {w.target.node}
        if w.judgement.coherent is not None:
            suspects = set(w.judgement.coherent.nodes)
        evidence = _evidence(w, _in_order(nodes[w.target]), through, program.called)
        kind, severity = _KINDS[w.judgement.outcome]
        message = _message(w, launch, evidence, program.called)
        stage = Stage.EAGER if w.judgement.outcome is Outcome.EAGER_WRONG else Stage.KERNEL
        fields = {"kind": kind, "severity": severity, "stage": stage, "buffer": w.target.buffer, "message": message}
        yield w, _finding(program, launch, _in_order(suspects), evidence, **fields)


def _finding(
    program: CompiledProgram, launch: Launch, suspects: list[torch.fx.Node], evidence: dict[str, Any], **fields: Any
) -> Finding:
    names = names_of(suspects)
    evidence = {**evidence, "launch": launch.nth, **program.configuration(launch)}
    if "configuration" in evidence:
        evidence["text"] = [*evidence["text"], f"ran with {evidence['configuration']}"]
    evidence |= unnamed(names)
    if "unnamed" in evidence:
        evidence["text"] = [*evidence["text"], evidence["unnamed"]]
    return Finding(check=Check.VALUES, graph=program.ref, kernel=launch.kernel, evidence=evidence, **names, **fields)


def _evidence(
    wrong: Wrong, computed: list[torch.fx.Node], through: tuple[str, ...], called: Mapping[str, str]
) -> dict[str, Any]:
    evidence = evidence_of(wrong.judgement, wrong.actual)
    evidence["computes"] = [n.name for n in computed]
    evidence["inputs"] = list(_inputs(wrong, computed, tuple(evidence["first_bad"])))
    evidence["through"] = list(through)
    evidence["filled"] = dict(wrong.filled)
    judgement = wrong.judgement
    if judgement.coherent is not None:
        shared = judgement.coherent
        names = [n.name for n in shared.nodes]
        evidence["shared"] = {"nodes": names, "what": str(shared.slope), "size": shared.size, "sigmas": shared.sigmas}
    if judgement.explained is not None:
        evidence["explained"] = str(judgement.explained)
    evidence["text"] = list(_text(evidence, called, "differ" if judgement.outcome is Outcome.UNDECIDED else "wrong"))
    return evidence


_AS_IF = {
    Arithmetic.BFLOAT16: "in bfloat16",
    Arithmetic.FLOAT16: "in float16",
    Arithmetic.TF32: "in TF32",
    Arithmetic.FLOAT32: "in float32",
    Arithmetic.TEXTBOOK: "by the textbook's formula",
}


def _shared(coherent: Coherent) -> str:
    """`the sigmoid is 4 % too small`."""
    names = " or ".join(dict.fromkeys(map(in_words, coherent.nodes)))
    size = f"{100 * abs(coherent.size):.2g} %"
    if coherent.slope is Slope.FACTOR:
        return f"{names} is {size} too {'large' if coherent.size > 0 else 'small'}"
    return f"{names} is off by {size} of its size"


def _nodes(plan: LaunchPlan, target: Target) -> set[torch.fx.Node]:
    """The nodes of the launch that the target is computed from, itself and what it is overwritten with included."""
    inside = {*plan.nodes, *plan.effects}
    if any(is_users_kernel(n.target) for n in inside):
        return inside
    found: set[torch.fx.Node] = set()
    stack = [target.node, *target.also, *(n for n in plan.effects if target.node in n.all_input_nodes)]
    while stack:
        node = stack.pop()
        if node in found or (node is not target.node and node not in inside):
            continue
        found.add(node)
        stack += node.all_input_nodes
    return found


def _named(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Those that compute something; an input that is overwritten is none of them."""
    return {n for n in nodes if n.op != "placeholder"}


def _cleared(plan: LaunchPlan, wrong: list[Wrong]) -> set[torch.fx.Node]:
    """What the launch's right results are computed from: it is right, then, and not to blame for the wrong ones."""
    bad = {w.target for w in wrong}
    return {node for target in plan.targets if target not in bad for node in _nodes(plan, target)}


def _in_order(nodes: set[torch.fx.Node]) -> list[torch.fx.Node]:
    graph = next(iter(nodes)).graph
    return [node for node in graph.nodes if node in nodes]


def _message(wrong: Wrong, launch: Launch, evidence: dict[str, Any], called: Mapping[str, str]) -> str:
    share = f"{evidence['bad']} of {evidence['elements']} elements"
    what = {
        Outcome.WRONG: "has wrong values in",
        Outcome.NON_FINITE: "turned finite numbers into NaN or Inf in",
        Outcome.IMPRECISE: "loses far more precision than eager in",
        Outcome.EAGER_WRONG: "is right, and eager is not for operands with these strides, in",
        Outcome.UNDECIDED: "differs from eager, and whether by more than rounding cannot be told, in",
    }[wrong.judgement.outcome]
    name = wrong.target.node.name
    message = f"{launch.kernel} {what} {share} of {wrong.target.buffer} ({called.get(name, name)})"
    if wrong.judgement.coherent is not None:
        message += f": {_shared(wrong.judgement.coherent)}"
    if wrong.judgement.outcome is Outcome.IMPRECISE and wrong.judgement.explained is not None:
        message += f", as if computed {_AS_IF[wrong.judgement.explained]}"
    return message + (", with other data; those of this call hide it" if wrong.filled else "")


def evidence_of(judgement: Judgement, actual: torch.Tensor) -> dict[str, Any]:
    """The numbers that show a result that was judged to be something other than right."""
    bad, centre, width = judgement.outside
    return evidence_at(bad, {"compiled": actual, "eager": judgement.eager, "float64": centre, "allowed": width})


def evidence_at(bad: torch.Tensor, values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Which elements are bad, and each of `values` at the first of them.

    `values` are the result, what it is compared with, and maybe the float64 result and the width around that.
    """
    index = tuple(int(i) for i in bad.nonzero()[0].tolist())
    tensors = list(values.values())
    return {
        "elements": bad.numel(),
        "bad": int(bad.sum()),
        "shape": list(bad.shape),
        "dtype": str(tensors[0].dtype).removeprefix("torch."),
        "first_bad": list(index),
        **{name: item(t[index]) for name, t in values.items()},
        **where_bad(bad),
        "picture": picture_of(bad, *tensors),
    }


def _inputs(wrong: Wrong, computed: list[torch.fx.Node], index: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """What the result was computed from: the element at `index` where the shapes line up, the range where not."""
    used = dict.fromkeys(parent for node in computed for parent in node.all_input_nodes if parent not in computed)
    tensors = [(n.name, t) for n in used if isinstance(t := wrong.operands.get(n), torch.Tensor) and t.numel()]
    for name, t in tensors[:_SHOWN]:
        sizes = list(zip(reversed(t.shape), reversed(wrong.actual.shape), strict=False))
        if t.dim() <= wrong.actual.dim() and all(size in (1, wanted) for size, wanted in sizes):
            at = [i if size > 1 else 0 for i, size in zip(index[len(index) - t.dim() :], t.shape, strict=True)]
            yield {"name": name, "at": at, "value": item(t[tuple(at)])}
        elif not t.is_complex():
            low, high = (item(v) for v in (t.to(torch.float64) if t.is_floating_point() else t.long()).aminmax())
            yield {"name": name, "shape": list(t.shape), "range": [low, high]}


def at_place(evidence: Mapping[str, Any]) -> str:
    """Where the first bad element is, as `at [0, 3]: `; nothing for a tensor that is one number."""
    return f"at {evidence['first_bad']}: " if evidence["first_bad"] else ""


def _text(evidence: dict[str, Any], called: Mapping[str, str], what: str) -> Iterator[str]:
    shape = ", ".join(map(str, evidence["shape"]))
    yield f"{what}: {evidence['pattern']} of {evidence['dtype']}[{shape}] ({evidence['bad']} of {evidence['elements']})"
    values = [f"{name} {_short(evidence[name])}" for name in ("compiled", "eager", "float64")]
    yield f"{at_place(evidence)}{', '.join(values)}; rounding explains ±{_short(evidence['allowed'])}"
    inputs = [
        f"{called.get(i['name'], i['name'])}{i['at']} = {_short(i['value'])}"
        if "at" in i
        else f"{called.get(i['name'], i['name'])} between {_short(i['range'][0])} and {_short(i['range'][1])}"
        for i in evidence["inputs"]
    ]
    if inputs:
        yield f"computed from {', '.join(inputs)}"
    if evidence["filled"]:
        filled = ", ".join(f"all of {name} {_short(value)}" for name, value in evidence["filled"].items())
        yield f"seen when torchsan launched the kernel once more, with {filled}"
    if evidence["through"]:
        yield f"an earlier kernel that feeds it may be at fault instead: {', '.join(evidence['through'])}"


def _short(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


_NEARLY = 0.9
"""The share of scattered elements from which on they are `nearly all`."""


def where_bad(bad: torch.Tensor) -> dict[str, Any]:
    """Where the bad elements lie, for evidence: `place` for programs, `pattern` for people."""
    place = _place(bad)
    nearly = place["side"] == "scattered" and float(bad.double().mean()) > _NEARLY
    return {"pattern": "nearly all elements" if nearly else _pattern(place), "place": place}


def _place(bad: torch.Tensor) -> dict[str, Any]:
    """The `side` of the tensor that is bad, and for all but "all", "one" and "scattered" the dimension `dim`.

    "last" and "first" are `count` `of` so many along it, "edges" both of its ends, "index" one `index` of it, the
    `whole` of that or a part.
    """
    if bool(bad.all()):
        return {"side": "all"}
    if int(bad.sum()) == 1:
        return {"side": "one"}
    dims = [d for d in range(bad.dim()) if bad.shape[d] > 1]
    for dim in dims:
        others = [d for d in range(bad.dim()) if d != dim]
        along = bad.any(dim=others) if others else bad
        hit = along.nonzero().flatten().tolist()
        size = bad.shape[dim]
        if len(hit) == 1 and len(dims) > 1:
            return {"side": "index", "index": hit[0], "whole": bool(bad.select(dim, hit[0]).all()), "dim": dim}
        if len(hit) < size and hit == list(range(size - len(hit), size)):
            return {"side": "last", "count": len(hit), "of": size, "dim": dim}
        if len(hit) < size and hit == list(range(len(hit))):
            return {"side": "first", "count": len(hit), "of": size, "dim": dim}
        if len(hit) == 2 and hit == [0, size - 1]:
            return {"side": "edges", "dim": dim}
    return {"side": "scattered"}


def _pattern(place: dict[str, Any]) -> str:
    """A place in words."""
    match place:
        case {"side": "all"}:
            return "all elements"
        case {"side": "one"}:
            return "one element"
        case {"side": "index", "index": index, "whole": whole, "dim": dim}:
            return f"{'all of' if whole else 'only in'} index {index} of dimension {dim}"
        case {"side": "last" | "first" as side, "count": count, "of": size, "dim": dim}:
            return f"the {side} {count} of {size} along dimension {dim}"
        case {"side": "edges", "dim": dim}:
            return f"both edges of dimension {dim}"
    return "scattered elements"
