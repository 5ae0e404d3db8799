"""From what was seen of a call to findings: the sentence, the call to paste, both sides, and what to change.

One finding for each operator and kind, recorded at once, its calls counted to the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchsan.checks.collector import Build, Collector
from torchsan.checks.metadata.compare import Difference
from torchsan.checks.metadata.judge import Alias, Change
from torchsan.graphs.nodes import operator_name, source_lines
from torchsan.records import Check, Finding, GraphRef, Kind, Severity, SourceLine, Stage
from torchsan.torch_internals.operators import is_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call happens: in a launch or at a node of a compiled graph, or in eager code."""

    stage: Stage = Stage.EAGER
    graph: GraphRef | None = None
    kernel: str | None = None
    buffer: str | None = None
    nodes: tuple[str, ...] = ()
    source: tuple[SourceLine, ...] = ()


class OperatorFindings:
    """Merges what is seen of an operator again and again into one finding of each kind."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.recorder = collector.recorder

    def report(self, finding: Finding, build: Build | None = None) -> None:
        """Record a finding; the same operator and kind again raises the count, and the severity if it is graver."""
        self._collector.add(_key(finding), finding, build, merge=_merged)

    def count(self, finding: Finding, stage: Stage) -> None:
        """What was reported happened again, at this stage."""
        self._collector.amend(Check.METADATA, _key(finding), partial(_counted, stage=stage))

    def knows(self, operator: str, kind: Kind) -> bool:
        """Whether this was reported of the operator."""
        return self._collector.find(Check.METADATA, (operator, kind)) is not None


def _key(finding: Finding) -> Hashable:
    """By its operator; an input or output of a graph that no operator makes by itself."""
    what = finding.ops[0] if finding.ops else (finding.graph, finding.evidence["differences"][0]["what"])
    return what, finding.kind


def _merged(known: Finding, new: Finding) -> Finding:
    """The finding with what was seen now: the graver of the two, with the calls and differences of both."""
    old = known.evidence["differences"]
    differences = [*old, *(d for d in new.evidence["differences"] if d not in old)]
    base = new if new.severity.rank > known.severity.rank else known
    seen = dict(known.evidence["seen"])
    # What a compiled program calls, and a node that was run here, the dispatcher has counted already.
    if new.evidence["against"] not in ("compiled", "graph") or str(new.stage) not in seen:
        seen[str(new.stage)] = seen.get(str(new.stage), 0) + 1
    return _with_evidence(dataclasses.replace(base, id=known.id), seen=seen, differences=differences)


def _counted(known: Finding, stage: Stage) -> Finding:
    seen = known.evidence["seen"]
    return _with_evidence(known, seen=seen | {str(stage): seen.get(str(stage), 0) + 1})


def _with_evidence(finding: Finding, *, seen: dict[str, int], **changed: Any) -> Finding:
    """The finding with other evidence, and with it as people read it.

    That is the call, both sides of each difference, what to change, and how often.
    """
    evidence = finding.evidence | changed | {"count": sum(seen.values()), "seen": seen}
    text = [evidence["call"]] if evidence["call"] else []
    text += [
        f"{d['what']}: {d['field']} is {d['real']}, {d['against']}: {d['believed']}" for d in evidence["differences"]
    ]
    text.append(f"to do: {evidence['fix']}")
    if evidence["count"] > 1:
        text.append(f"in {evidence['count']} calls: {', '.join(f'{n} {s}' for s, n in seen.items())}")
    return dataclasses.replace(finding, evidence=evidence | {"text": text})


def _finding(
    kind: Kind,
    severity: Severity,
    place: Place,
    message: str,
    *,
    ops: tuple[str, ...],
    call: str,
    differences: Iterable[Difference],
    fix: str,
    against: str,
) -> Finding:
    """`against` is what the call was compared with, as the documentation of `evidence` lists it: `fake`, `schema`, …"""
    evidence = {
        "call": call,
        "against": against,
        "differences": [dataclasses.asdict(d) | {"against": against} for d in differences],
        "fix": fix,
    }
    finding = Finding(
        kind=kind,
        severity=severity,
        check=Check.METADATA,
        message=message,
        ops=ops,
        evidence=evidence,
        **{f.name: getattr(place, f.name) for f in dataclasses.fields(place)},
    )
    return _with_evidence(finding, seen={str(place.stage): 1})


_BELIEVED = {
    "fake": "its fake kernel says",
    "symbolic": "its fake kernel, run with symbolic sizes, says",
    "meta": "its meta kernel says",
    "decomposition": "its decomposition gives",
    "functionalize": "functionalization gives",
    "compiled": "the compiler believed",
    "graph": "the graph that was compiled says",
}


def mismatch(
    overload: Any, place: Place, against: str, differences: Sequence[Difference], call: str, *, relied: bool = False
) -> Finding:
    """The result is not what was believed. `relied` if compiled code was generated for what was believed."""
    first = differences[0]
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    return _finding(
        Kind.WRONG_VALUES if all(d.field == "value" for d in differences) else Kind.METADATA_MISMATCH,
        _severity(overload, relied=relied),
        place,
        f"{overload}: {first.field} of {first.what} is {first.real}, {_BELIEVED[against]} {first.believed}{more}",
        ops=(str(overload),),
        call=call,
        differences=differences,
        fix=_advice(overload, differences, against),
        against=against,
    )


def undeclared_mutation(overload: Any, place: Place, changes: Sequence[Change], call: str) -> Finding:
    """Arguments changed that the schema does not declare."""
    names = ", ".join(f"`{c.argument}`" for c in changes)
    return _finding(
        Kind.UNDECLARED_MUTATION,
        _severity(overload),
        place,
        f"{overload} changes its argument {names}, which its schema does not declare",
        ops=(str(overload),),
        call=call,
        differences=[Difference(what=c.argument, field=c.what, real="changed", believed="unchanged") for c in changes],
        fix=f"declare it: mutates_args for torch.library.custom_op, Tensor(a!) in a schema; or copy {names} first",
        against="schema",
    )


def idle_declaration(overload: Any, argument: str, calls: int, call: str) -> Finding:
    """An argument that is declared to be written never was."""
    return _finding(
        Kind.UNDECLARED_MUTATION,
        Severity.NOTE,
        Place(),
        f"{overload} declares that it writes `{argument}`, and never did in {calls} calls that were looked at",
        ops=(str(overload),),
        call=call,
        differences=[Difference(what=argument, field="bits", real="unchanged", believed="changed")],
        fix=f"take the declaration back if `{argument}` is only read: it keeps the compiler from optimising",
        against="schema",
    )


def undeclared_alias(overload: Any, place: Place, pairs: Sequence[Alias], call: str) -> Finding:
    """Results share memory although the schema says that they do not."""
    first = pairs[0]
    other = first.other if first.other.startswith("output") else f"argument `{first.other}`"
    apart = all(not pair.overlap for pair in pairs)
    return _finding(
        Kind.UNDECLARED_ALIAS,
        _severity(overload, harmless=apart),
        place,
        f"{overload}: {first.one} shares memory with {other}, which its schema says it does not"
        + (" (different parts of one storage)" if apart else ""),
        ops=(str(overload),),
        call=call,
        differences=[
            Difference(what=f"{pair.one} with {pair.other}", field="alias", real="one storage", believed="separate")
            for pair in pairs
        ],
        fix="return a copy (.clone()), or declare the alias in the schema: Tensor(a) for both",
        against="schema",
    )


def broken_guard(graph: GraphRef, what: str, found: Sequence[Difference], node: Any) -> Finding:
    """An input or output of a compiled graph is not what the graph was compiled for; `node` makes the output."""
    operator = operator_name(node) if node is not None else None
    place = Place(stage=Stage.AOT, graph=graph)
    if node is not None:
        place = Place(stage=Stage.KERNEL, graph=graph, nodes=(node.name,), source=source_lines([node]))
    first = found[0]
    return _finding(
        Kind.METADATA_MISMATCH,
        Severity.ERROR,
        place,
        f"{what} of graph {graph.id} {graph.direction}: {first.field} is {first.real}, "
        f"the graph was compiled for {first.believed}",
        ops=(operator,) if operator else (),
        call="",
        differences=found,
        fix="look at the operator that makes it: what its fake kernel says is what graphs are compiled and guarded for",
        against="guards",
    )


def _severity(overload: Any, *, relied: bool = False, harmless: bool = False) -> Severity:
    """An error where the user can mend it, or a compiled program relies on it; else, for PyTorch's own, a warning.

    `harmless` mismatches are warnings anywhere.
    """
    return Severity.WARNING if harmless or (is_own(overload) and not relied) else Severity.ERROR


def _advice(overload: Any, differences: Sequence[Difference], against: str) -> str:
    """What to change so that the accounts agree."""
    fields = {d.field for d in differences}
    if against == "graph" and is_own(overload):
        return (
            "look for the graph pass that made or changed this node, and let it set node.meta['val'] to what the node "
            "gives; if there is none of your own, it is a bug of PyTorch's"
        )
    if is_own(overload):
        return "a bug of PyTorch's: nothing to change here; do not rely on this field of the result in compiled code"
    if against == "decomposition":
        return f"make the decomposition of {overload} return what the operator returns"
    kernel = f"the fake kernel of {overload} (torch.library.register_fake)"
    if "structure" in fields:
        return f"let {kernel} return {differences[0].real}, as the operator does"
    if "requires_grad" in fields:
        return (
            f"register the autograd formula of {overload} with torch.library.register_autograd; its kernel must not "
            "record one itself"
        )
    if "alias" in fields:
        return f"let {kernel} return views where the operator does, and new tensors where it does not"
    parts = [f"{d.field} {d.real} for {d.what}" for d in differences]
    return f"let {kernel} return {'; '.join(parts)}; or change the operator to return what the fake kernel says"
