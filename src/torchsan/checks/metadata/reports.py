"""From what was seen of a call to reports: the sentence, the call to paste, both sides, and what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torchsan.checks.metadata.compare import Difference
from torchsan.checks.metadata.judge import Alias, Mutation
from torchsan.checks.metadata.ledger import Report
from torchsan.checks.metadata.policy import advice, excused, severity_of
from torchsan.instruments.provenance import operator_name, source_lines
from torchsan.records import GraphRef, Kind, Severity, Stage

__all__ = ["alias_report", "guard_report", "mismatch_report", "mutation_report", "unused_declaration_report"]

_BELIEVED = {
    "fake": "its fake kernel says",
    "symbolic": "its fake kernel, run with symbolic sizes, says",
    "meta": "its meta kernel says",
    "decomposition": "its decomposition gives",
    "functionalize": "functionalization gives",
    "compiled": "the compiler believed",
    "graph": "the graph that was compiled says",
    "guards": "the compiled graph was guarded for",
}


def mismatch_report(
    overload: Any,
    stage: Stage,
    against: str,
    differences: Sequence[Difference],
    call: str,
    *,
    relied: bool = False,
    **where: Any,
) -> Report:
    """The result is not what was believed. `relied` if compiled code was generated for what was believed."""
    first = differences[0]
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    believed = _BELIEVED[against]
    return Report(
        operator=str(overload),
        kind=Kind.WRONG_VALUES if all(d.field == "value" for d in differences) else Kind.METADATA_MISMATCH,
        severity=severity_of(overload, relied=relied),
        stage=stage,
        message=f"{overload}: {first.field} of {first.what} is {first.real}, {believed} {first.believed}{more}",
        call=call,
        differences=tuple(dataclasses.asdict(d) | {"against": against} for d in differences),
        fix=advice(overload, differences, against),
        against=against,
        **where,
    )


def mutation_report(overload: Any, stage: Stage, found: Sequence[Mutation], call: str, **where: Any) -> Report | None:
    """Arguments changed that the schema does not declare."""
    undeclared = [m for m in found if not m.declared]
    if not undeclared or excused(overload, "mutation"):
        return None
    names = ", ".join(f"`{m.argument}`" for m in undeclared)
    return Report(
        operator=str(overload),
        kind=Kind.UNDECLARED_MUTATION,
        severity=severity_of(overload),
        stage=stage,
        message=f"{overload} changes its argument {names}, which its schema does not declare",
        call=call,
        differences=tuple(
            {"what": m.argument, "field": m.what, "real": "changed", "believed": "unchanged", "against": "schema"}
            for m in undeclared
        ),
        fix=f"declare it: mutates_args for torch.library.custom_op, Tensor(a!) in a schema; or copy {names} first",
        against="schema",
        **where,
    )


def unused_declaration_report(overload: Any, stage: Stage, argument: str, calls: int, call: str) -> Report:
    """An argument that is declared to be written never was."""
    return Report(
        operator=str(overload),
        kind=Kind.UNDECLARED_MUTATION,
        severity=Severity.NOTE,
        stage=stage,
        message=f"{overload} declares that it writes `{argument}`, and never did in {calls} calls that were looked at",
        call=call,
        differences=(
            {"what": argument, "field": "bits", "real": "unchanged", "believed": "changed", "against": "schema"},
        ),
        fix=f"take the declaration back if `{argument}` is only read: it keeps the compiler from optimising",
        against="schema",
    )


def alias_report(overload: Any, stage: Stage, found: Sequence[Alias], call: str, **where: Any) -> Report | None:
    """Results share memory although the schema says that they do not."""
    undeclared = [a for a in found if not a.declared]
    if not undeclared or excused(overload, "alias"):
        return None
    pair = undeclared[0]
    apart = all(not a.overlap for a in undeclared)
    return Report(
        operator=str(overload),
        kind=Kind.UNDECLARED_ALIAS,
        severity=severity_of(overload, harmless=apart),
        stage=stage,
        message=f"{overload}: {pair.one} shares memory with {_with(pair.other)}, which its schema says it does not"
        + (" (different parts of one storage)" if apart else ""),
        call=call,
        differences=tuple(
            {
                "what": f"{a.one} with {a.other}",
                "field": "alias",
                "real": "one storage",
                "believed": "separate",
                "against": "schema",
            }
            for a in undeclared
        ),
        fix="return a copy (.clone()), or declare the alias in the schema: Tensor(a) for both",
        against="schema",
        **where,
    )


def guard_report(graph: GraphRef, what: str, found: Sequence[Difference], node: Any) -> Report:
    """An input or output of a compiled graph is not what the graph was compiled for."""
    operator = operator_name(node) if node is not None else None
    first = found[0]
    return Report(
        operator=operator or f"{what} of graph {graph.id} {graph.direction}",
        ops=(operator,) if operator else (),
        kind=Kind.METADATA_MISMATCH,
        severity=Severity.ERROR,
        stage=Stage.KERNEL if node is not None else Stage.AOT,
        message=f"{what} of graph {graph.id} {graph.direction}: {first.field} is {first.real}, "
        f"the graph was compiled for {first.believed}",
        call="",
        differences=tuple(dataclasses.asdict(d) | {"against": "guards"} for d in found),
        fix="look at the operator that makes it: what its fake kernel says is what graphs are compiled and guarded for",
        against="guards",
        graph=graph,
        nodes=(node.name,) if node is not None else (),
        source=source_lines([node]) if node is not None else (),
    )


def _with(name: str) -> str:
    return name if name.startswith("output") else f"argument `{name}`"
