"""Which step of a compile let a read and a write of the same memory change places, and the finding that says so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.fx

from torchsan.checks.stages.effects import Effects, mutates
from torchsan.checks.stages.storages import Comparison, Reordered
from torchsan.graphs.nodes import names_of, operator_name, source_lines, unnamed
from torchsan.records import Check, Finding, Kind, Severity, SourceLine
from torchsan.torch_internals.compile_stages import CompileStages
from torchsan.torch_internals.snapshots import Snapshot, Trail

_MOST = 8
"""How many changes of places are kept for one step."""


class EffectOrder:
    """The changes of places in one compile, by the graph that each step made. Worked out when it is first asked for."""

    def __init__(self, stages: CompileStages) -> None:
        self._stages = stages
        self._found: dict[Snapshot, tuple[Reordered, ...]] | None = None

    def __call__(self) -> Mapping[Snapshot, tuple[Reordered, ...]]:
        """The steps that changed places, in order."""
        if self._found is None:
            self._found = {}
            for trail in _trails(self._stages):
                self._found |= dict(_steps(trail))
        return self._found


def _trails(stages: CompileStages) -> Iterator[Trail]:
    yield stages.dynamo
    for part in stages.parts:
        yield from (part.whole, part.forward, part.backward)


def _steps(trail: Trail) -> Iterator[tuple[Snapshot, tuple[Reordered, ...]]]:
    effects: dict[Snapshot, Effects] = {}
    wanted = {s: mutates(s.graph) for s in trail.snapshots}
    for before, after in itertools.pairwise(trail.snapshots):
        if not wanted[before] and not wanted[after]:
            continue
        if _writes_inside(before) or _writes_inside(after):
            continue
        for snapshot in (before, after):
            if snapshot not in effects:
                effects[snapshot] = Effects(snapshot.graph)
        found = tuple(itertools.islice(reordered(effects[before], effects[after]), _MOST))
        effects.pop(before)
        if found:
            yield after, found


def _writes_inside(snapshot: Snapshot) -> bool:
    """Whether a function that is passed to an operator, as to `cond`, writes: nobody follows what, and when."""
    held = snapshot.attributes.values()
    return any(isinstance(value, torch.fx.GraphModule) and mutates(value.graph) for value in held)


def reordered(before: Effects, after: Effects) -> Iterator[Reordered]:
    """The reads of the second graph that see another version of a memory than they do in the first, each once."""
    comparison = Comparison()
    seen: set[tuple[str, str]] = set()
    pairs = ((before.reads[n], reads) for n, reads in after.reads.items() if n in before.reads)
    left = (([before.left[n]], [r]) for n, r in after.left.items() if n in before.left)
    for old, new in itertools.chain(pairs, left):
        if len(old) != len(new):
            continue
        for a, b in zip(old, new, strict=True):
            found = comparison.reads(a, b) if a.written or b.written else None
            if isinstance(found, Reordered) and (key := (found.statement.name, found.write.name)) not in seen:
                seen.add(key)
                yield found
    for name, source in after.overlapping.items():
        node = next((n for n, _ in after.writes if n.name == name), None)
        if name not in before.overlapping and node is not None:
            place = after.place(source)
            storage = place.storage.name if place is not None else source.name
            yield Reordered(original=_reader(source, node), statement=node, write=node, storage=storage, late=True)


def _reader(source: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    return source if source.op != "placeholder" else node


def order_finding(found: Finding, entries: Sequence[Reordered]) -> Finding:
    """Return the finding with the two statements that changed places, and what it says of the results."""
    first = entries[0]
    statements = (first.original, first.statement, first.write)
    nodes = list({n.name: n for n in statements if _is_statement(n)}.values())
    # A lost write has no counterpart: what the step put in its place is what the finding names already.
    also = (
        found
        if first.statement is None
        else Finding(kind=found.kind, severity=found.severity, check=found.check, message="")
    )
    step, results = _parts(found.message)
    names: dict[str, Any] = {
        "nodes": tuple(dict.fromkeys((*(n.name for n in nodes), *also.nodes))),
        "ops": tuple(dict.fromkeys((*names_of(nodes)["ops"], *also.ops))),
        "source": tuple(dict.fromkeys((*(line for n in nodes for line in _lines(n)), *also.source))),
    }
    evidence = found.evidence | {
        "order": [_evidence(e) for e in entries],
        "text": [line for e in entries[:_MOST] for line in _text(e)],
    }
    evidence.pop("unnamed", None)
    evidence |= unnamed(names)
    return replace(
        found,
        kind=Kind.REORDERED_EFFECT,
        message=f"{step}: {_sentence(first)}" + (f"; {results}" if results else ""),
        **names,
        kernel=first.kernels[0] if first.kernels else found.kernel,
        buffer=first.buffer or found.buffer,
        evidence=evidence,
    )


def _parts(message: str) -> tuple[str, str]:
    """The step that the message of a finding blames, and what it says of the results, if anything."""
    for words in (" changed what the program computes", " returns other values than the graph that it was given"):
        step, found, results = message.partition(f"{words}: ")
        if found:
            return step, results
    return message, ""


def unconfirmed(what: str, entries: Sequence[Reordered], **fields: Any) -> Finding:
    """Return the finding that places were changed, in a call whose results are right all the same."""
    severity = Severity.NOTE
    found = Finding(kind=Kind.REORDERED_EFFECT, check=Check.STAGES, severity=severity, message=what, **fields)
    named = order_finding(found, entries)
    return replace(named, message=f"{named.message}; the results of this call do not show it")


def _is_statement(node: torch.fx.Node | None) -> bool:
    return node is not None and node.op not in ("output", "placeholder")


def _sentence(entry: Reordered) -> str:
    """What happens now, and what the program does."""
    write = _call(entry.write)
    if entry.statement is None:
        return f"{write} no longer writes {entry.storage}"
    if entry.statement is entry.write:
        return f"{write} overwrites the part of {entry.storage} that it still reads"
    read = "the caller" if entry.statement.op in ("output", "placeholder") else _call(entry.statement)
    if entry.late:
        return f"{read} reads {entry.storage} after {write} has written it, which the program reads before"
    return f"{read} reads {entry.storage} before {write} writes it, which the program reads after"


def _call(node: torch.fx.Node) -> str:
    return f"`{node.name}`"


def _evidence(entry: Reordered) -> dict[str, Any]:
    """The two statements in the program's order, and whether the read now comes after the write."""
    return {
        "storage": entry.storage,
        "read": _described(entry.statement),
        "read before": _described(entry.original),
        "write": _described(entry.write),
        "now": "reads after the write" if entry.late else "reads before the write",
        "kernels": list(entry.kernels) if entry.kernels else None,
    }


def _described(node: torch.fx.Node | None) -> dict[str, Any] | None:
    if node is None:
        return None
    lines = _lines(node)
    return {
        "node": node.name,
        "op": operator_name(node) or str(node.target),
        "source": f"{lines[-1].file}:{lines[-1].line}: {lines[-1].code}" if lines else None,
    }


def _text(entry: Reordered) -> Iterator[str]:
    for role, node in (("reads", entry.original), ("writes", entry.write)):
        lines = _lines(node) if node is not None else ()
        if lines:
            yield f"{role} {entry.storage}: {lines[-1].code}  ({lines[-1].file}:{lines[-1].line})"


def _lines(node: torch.fx.Node) -> tuple[SourceLine, ...]:
    """The line of a node; of an epilogue that the compiler added, that of what it writes."""
    for _ in range(_MOST):
        found = source_lines([node])
        if found or not node.all_input_nodes:
            return found
        node = node.all_input_nodes[-1]
    return ()
