"""The parts of a comparison as words and tables, which the terminal and the web page show alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from torchsan.diff.result import (
    Diff,
    How,
    Judged,
    KernelDiff,
    MemoryDiff,
    MetadataDiff,
    OperatorDiff,
    Status,
    ValueDiff,
)
from torchsan.records import Comparison
from torchsan.records.tensor import in_bytes
from torchsan.report.findings import Line, clean, count, source_lines

D = TypeVar("D")

_NODES = 3


class Row(NamedTuple):
    """The differences of one value over all calls in which they were judged alike; its fields head the columns."""

    graph: str
    call: str
    value: str
    verdict: str
    elements: str
    largest: str
    relative: str
    judged_from: str
    source: str

    @classmethod
    def headings(cls) -> tuple[str, ...]:
        """The fields as words."""
        return tuple(name.replace("_", " ") for name in cls._fields)


def headline(diff: Diff) -> str:
    """The outcome in a sentence."""
    match diff.status:
        case Status.SAME:
            return "same: every value that was compared has the same bits or elements"
        case Status.ROUNDING if diff.compared.get(Judged.UNDECIDED):
            return "same up to rounding, as far as can be told"
        case Status.ROUNDING:
            return "same up to rounding"
        case Status.INCOMPLETE:
            return "incomplete"
        case Status.DIFFERENT:
            assert diff.first is not None
            return f"the two runs differ first at {where(diff.first)}"


def where(value: ValueDiff) -> str:
    """The place of a difference, as `mul_4 (mul_7 in B) of graph 0 forward, call 0`."""
    other = value.b.node or value.b.variable
    mine = value.a.node or value.a.variable
    renamed = f" ({other} in B)" if other != mine else ""
    if value.a.graph is None:
        return f"probe {value.name}, pass {value.a.call}"
    graph = value.a.graph if value.a.graph == value.b.graph else f"{value.a.graph} / {value.b.graph}"
    role = "input " if value.role == "input" else ""
    return f"{role}{value.name}{renamed} of graph {graph}, call {value.a.call}"


def verdict_text(diff: Diff) -> str:
    """The outcome and the counts, in one line."""
    total = sum(diff.compared.values())
    counts = ", ".join(f"{n} {_WORDS[Judged(j)]}" for j, n in diff.compared.items() if n)
    values = f"{total} values compared" if total != 1 else "1 value compared"
    return f"{headline(diff)}; {values}{f': {counts}' if counts else ''}"


_WORDS = {
    Judged.SAME: "same",
    Judged.ROUNDING: "same up to rounding",
    Judged.UNDECIDED: "undecided",
    Judged.FOLLOWS: "different because their inputs are",
    Judged.DIFFERENT: "newly different",
}


def apart(comparison: Comparison) -> str:
    """How far two tensors are apart, as a sentence."""
    parts = [f"{comparison.mismatches} of {comparison.count} elements differ"]
    if comparison.max_abs is not None:
        parts.append(f"by at most {comparison.max_abs:.3g}")
    if comparison.max_rel is not None:
        parts.append(f"relatively {comparison.max_rel:.3g}")
    if comparison.max_ulps is not None:
        parts.append(f"{comparison.max_ulps} units in the last place")
    return ", ".join(parts)


def given_text(value: ValueDiff) -> tuple[str, ...]:
    """What there is to say of an input: nothing has computed it."""
    return ("the two runs were given different values here",) if value.role == "input" else ()


def firsts(diff: Diff) -> list[tuple[str, str]]:
    """The first difference of each kind, and how many there are."""
    values = diff.first or next(iter(diff.values), None)
    return [
        ("values", "none" if values is None else f"{where(values)}: {_WORDS[values.judged]}"),
        ("operators", _first(diff.operators, _operator)),
        ("metadata", _first(diff.metadata, _metadata)),
        ("kernels", _first(diff.kernels, _kernel)),
        ("allocations", _first(diff.memory, _memory)),
    ]


def _first(found: Sequence[D], text: Callable[[D], str]) -> str:
    return f"{text(found[0])}{_more(len(found))}" if found else "none"


def _more(n: int) -> str:
    return f" (and {n - 1} more)" if n > 1 else ""


def _operator(o: OperatorDiff) -> str:
    return f"graph {o.graph}: A {_listed(o.a)}; B {_listed(o.b)}"


def _metadata(m: MetadataDiff) -> str:
    return f"{m.what} of {m.name} in graph {m.graph}, call {m.call}: A {m.a}, B {m.b}"


def _kernel(k: KernelDiff) -> str:
    if k.a == k.b:
        return f"graph {k.graph}: other nodes are computed by {_listed(k.a)}"
    return f"graph {k.graph}: A {_listed(k.a)}; B {_listed(k.b)}"


def _memory(m: MemoryDiff) -> str:
    return f"graph {m.graph}, call {m.call}: {m.what} A {in_bytes(m.a)}, B {in_bytes(m.b)}"


def _listed(names: Iterable[str]) -> str:
    shown = [clean(name, 80) for name in names]
    more = f", … ({len(shown) - _NODES} more)" if len(shown) > _NODES else ""
    return (", ".join(shown[:_NODES]) or "nothing") + more


def rows(diff: Diff) -> list[Row]:
    """The table of values that differ, in the order of the program; calls that were judged alike share a row."""
    groups: dict[tuple[str | None, str, Judged, How], list[ValueDiff]] = {}
    for value in diff.values:
        groups.setdefault((value.a.graph, value.name, value.judged, value.how), []).append(value)
    return [_row(group) for group in groups.values()]


def _row(group: list[ValueDiff]) -> Row:
    worst = max(group, key=lambda v: v.spread or 0.0)
    first, comparison = group[0], worst.comparison
    called = [value.a.call for value in group]
    following = called == list(range(called[0], called[0] + len(group)))
    calls = f"{called[0]}–{called[-1]}" if following else f"{called[0]}, … ({len(group)})"
    calls = calls if len(group) > 1 else f"{called[0]}"
    source = first.source[0] if first.source else None
    return Row(
        graph=first.a.graph or "probe",
        call=calls,
        value=first.name,
        verdict=_VERDICTS[first.judged],
        elements=f"{comparison.mismatches} of {comparison.count}" if comparison is not None else "",
        largest=f"{comparison.max_abs:.3g}" if comparison is not None and comparison.max_abs is not None else "",
        relative=f"{worst.spread:.1e}" if worst.spread is not None else "",
        judged_from=first.how.value,
        source=f"{source.file.rpartition('/')[2]}:{source.line}" if source is not None else "",
    )


_ROWS = 20
_VERDICTS = {  # in the order in which a short table keeps rows
    Judged.DIFFERENT: "newly different",
    Judged.UNDECIDED: "undecided",
    Judged.FOLLOWS: "from its inputs",
    Judged.ROUNDING: "rounding",
    Judged.SAME: "same",
}
_CIRCUMSTANCES = 6
_NOT_COMPARED = 4
_STYLES = {
    Status.SAME: "bold green",
    Status.ROUNDING: "bold green",
    Status.DIFFERENT: "bold red",
    Status.INCOMPLETE: "bold yellow",
}


def diff_lines(diff: Diff, *, everything: bool = False, quiet: bool = False) -> Iterator[Line]:
    """Yield the report. `quiet` leaves only the first difference and the verdict; `everything` limits nothing."""
    if not quiet:
        yield from _head(diff, everything)
    if diff.first is not None:
        yield Line("")
        yield from _first_lines(diff.first)
    if not quiet:
        yield from _kinds(diff)
        yield from _table(diff, everything)
        yield from _not_compared(diff, everything)
    yield Line("")
    yield Line(f"torchsan: {clean(verdict_text(diff))}", _STYLES[diff.status])
    for reason in diff.reasons:
        yield Line(f"  {clean(reason)}")


def _head(diff: Diff, everything: bool) -> Iterator[Line]:
    for name, run in (("A", diff.a), ("B", diff.b)):
        looked = f"{count(run.kernels, 'kernel')} in {count(run.graphs, 'graph')}"
        command = clean(" ".join(run.command), 100)
        yield Line(f"{name}: {clean(run.path)}  {command}  ({looked})", "bold")
    shown = len(diff.circumstances) if everything else _CIRCUMSTANCES
    for c in diff.circumstances[:shown]:
        yield Line(f"  {clean(c.what)}: A {clean(c.a, 200)}, B {clean(c.b, 200)}", "dim")
    if len(diff.circumstances) > shown:
        yield Line(f"  … and {len(diff.circumstances) - shown} more circumstances that differ (--all)", "dim")


def _first_lines(value: ValueDiff) -> Iterator[Line]:
    yield Line(f"First difference: {clean(where(value))}", "bold red")
    yield from source_lines(value.source)
    for text in (*given_text(value), *value.text):
        yield Line(f"    {clean(text)}")
    if value.comparison is not None:
        yield Line(f"    {apart(value.comparison)}")
    mine, other = clean(value.a.kernel), clean(value.b.kernel)
    if value.a.launch is not None:
        yield Line(f"    in:      kernel {mine}" + (f", in B {other}" if mine != other else ""), "dim")
    if value.a.op:
        ops = value.a.op if value.a.op == value.b.op else f"{value.a.op}, in B {value.b.op}"
        yield Line(f"    op:      {clean(ops)}", "dim")


def _kinds(diff: Diff) -> Iterator[Line]:
    yield Line("")
    yield Line("First of each kind", "bold")
    for name, text in firsts(diff):
        yield Line(f"  {name:<12} {clean(text, 400)}")


def _table(diff: Diff, everything: bool) -> Iterator[Line]:
    found = rows(diff)
    if not found:
        return
    order = list(_VERDICTS.values())
    shown = found if everything else sorted(found, key=lambda r: order.index(r.verdict))[:_ROWS]
    kept = {id(r) for r in shown}
    cells = [Row.headings(), *([clean(cell, 48) for cell in row] for row in found if id(row) in kept)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield Line("")
    for n, row in enumerate(cells):
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        yield Line(f"  {text}", "bold" if n == 0 else "")
    if len(found) > len(shown):
        yield Line(f"  … and {len(found) - len(shown)} rows more (--all)", "dim")


def _not_compared(diff: Diff, everything: bool) -> Iterator[Line]:
    groups: dict[str, list[str]] = defaultdict(list)
    for skipped in diff.not_compared:
        groups[skipped.reason].append(skipped.what)
    if not groups:
        return
    yield Line("")
    yield Line("Not compared", "bold")
    for n, (reason, whats) in enumerate(groups.items()):
        if n == _NOT_COMPARED and not everything:
            yield Line(f"  … and {len(groups) - n} reasons more (--all)", "dim")
            return
        names = whats if everything else whats[:4]
        more = ", …" if len(whats) > len(names) else ""
        yield Line(f"  {clean(', '.join(names), 400)}{more}: {clean(reason, 200)}")
