"""From what was seen of a call to reports: the sentence, the call to paste, both sides, and what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torchsan.checks.metadata.compare import Difference
from torchsan.checks.metadata.findings import Report
from torchsan.checks.metadata.judge import Alias, Mutation
from torchsan.graphs.nodes import operator_name, source_lines
from torchsan.records import GraphRef, Kind, Severity, Stage
from torchsan.torch_internals.operators import is_own

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


BELIEVED = frozenset({"size", "dtype", "device", "layout"})
"""What Inductor takes from a node. It lays out results anew, so strides are what the program asserts itself."""

_NOT_LOOKED_AT = frozenset(
    {
        # Metadata by definition: they return their argument, a view of it, or a number.
        "aten.lift_fresh.default",
        "aten.lift.default",
        "aten.detach.default",
        "aten.detach_.default",
        "aten._local_scalar_dense.default",
        "aten.is_same_size.default",
        "aten.equal.default",
        # They take storages, which no fake tensor can stand for.
        "aten.set_.source_Storage",
        "aten.set_.source_Storage_storage_offset",
        "aten.set_.source_Tensor",
        "aten.set_.source_Tensor_storage_offset",
        "aten.set_.default",
        "aten.record_stream.default",
        "aten.data.default",
        "aten._has_compatible_shallow_copy_type.default",
    }
)

_STATISTICS = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm",
    "instance_norm",
    "_batch_norm_impl_index",
)
"""Their schemas hide that they update running statistics. PyTorch takes that into account where it traces them."""

_MAY_ALIAS = ("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "lift_fresh", "_reshape_alias", "_unsafe_view")
"""Their results share memory by design: whoever calls them promises not to write to it."""


def looked_at(overload: Any) -> bool:
    """Whether calls of this operator are looked at at all."""
    return str(overload) not in _NOT_LOOKED_AT


def excused(overload: Any, what: str) -> bool:
    """Whether it is known, and taken into account by PyTorch, that this operator does `mutation` or `alias` unsaid."""
    if not is_own(overload):
        return False
    name = str(overload).split(".")[1]
    return name in (_STATISTICS if what == "mutation" else _MAY_ALIAS)


def severity_of(overload: Any, *, relied: bool = False, harmless: bool = False) -> Severity:
    """An error where the user can mend it, or a compiled program relies on it; else, for PyTorch's own, a warning.

    `harmless` mismatches are warnings anywhere.
    """
    if harmless or (is_own(overload) and not relied):
        return Severity.WARNING
    return Severity.ERROR


def advice(overload: Any, differences: Iterable[Difference], against: str) -> str:
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
    first = next(iter(differences))
    kernel = f"the fake kernel of {overload} (torch.library.register_fake)"
    if "structure" in fields:
        return f"let {kernel} return {first.real}, as the operator does"
    if "requires_grad" in fields:
        return (
            f"register the autograd formula of {overload} with torch.library.register_autograd; its kernel must not "
            "record one itself"
        )
    if "alias" in fields:
        return f"let {kernel} return views where the operator does, and new tensors where it does not"
    parts = [f"{d.field} {d.real} for {d.what}" for d in differences]
    return f"let {kernel} return {'; '.join(parts)}; or change the operator to return what the fake kernel says"
