"""A comparison on the terminal: where the runs part, with the evidence; the first of everything else; then the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torchsan.diff.result import Diff, Judged, Status, ValueDiff
from torchsan.diff.words import Row, apart, firsts, rows, verdict_text, where
from torchsan.report.findings import Line, clean, source_lines
from torchsan.report.kernels import count

__all__ = ["diff_lines"]

_ROWS = 20
_CIRCUMSTANCES = 6
_NOT_COMPARED = 4
_STYLES = {
    Status.SAME: "bold green",
    Status.ROUNDING: "bold green",
    Status.DIFFERENT: "bold red",
    Status.INCOMPLETE: "bold yellow",
}
_WEIGHT = {Judged.DIFFERENT: 0, Judged.UNDECIDED: 1, Judged.FOLLOWS: 2, Judged.ROUNDING: 3, Judged.SAME: 4}


def diff_lines(diff: Diff, *, everything: bool = False, quiet: bool = False) -> Iterator[Line]:
    """Yield the report. `quiet` leaves only the first difference and the verdict; `everything` limits nothing."""
    if not quiet:
        yield from _head(diff, everything)
    if diff.first is not None:
        yield Line("")
        yield from _first(diff.first)
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


def _first(value: ValueDiff) -> Iterator[Line]:
    yield Line(f"First difference: {clean(where(value))}", "bold red")
    yield from source_lines(value.source)
    if value.role == "input":
        yield Line("    the two runs were given different values here")
    for text in value.text:
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
    shown = found if everything else sorted(found, key=lambda r: _WEIGHT[r.judged])[:_ROWS]
    kept = {id(r) for r in shown}
    cells = [_HEADINGS, *(_cells(r) for r in found if id(r) in kept)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADINGS))]
    yield Line("")
    for n, row in enumerate(cells):
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        yield Line(f"  {text}", "bold" if n == 0 else "")
    if len(found) > len(shown):
        yield Line(f"  … and {len(found) - len(shown)} rows more (--all)", "dim")


_HEADINGS = ("graph", "call", "value", "judged", "differ", "largest", "relative", "by", "source")


def _cells(row: Row) -> tuple[str, ...]:
    cells = (row.graph, row.calls, row.name, row.judged, row.differ, row.largest, row.relative, row.by, row.place)
    return tuple(clean(cell, 48) for cell in cells)


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
