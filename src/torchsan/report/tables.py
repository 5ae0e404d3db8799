"""The kernels of a run as a table, and in detail."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from typing import Any

from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.records import GraphRecord, KernelRecord
from torchsan.records.tensor import in_bytes
from torchsan.report.findings import Line, clean, count, field_lines, source_lines


def program_lines(recording: Reader, limit: int | None, place: str) -> list[Line]:
    """Return the graphs and their kernels in launch order, in at most `limit` lines."""
    graphs, coverage = recording.graphs(), recording.coverage()
    if not graphs:
        return []
    head = [
        Line(""),
        Line(
            f"Compiled program: {count(coverage.graphs, 'graph')}, {count(coverage.kernels, 'kernel')}, "
            f"{count(coverage.buffers, 'buffer')} ({coverage.buffers_checked} checked), "
            f"{count(coverage.ops_checked, 'operator')} checked",
            "bold",
        ),
    ]
    rows: list[GraphRecord | KernelRecord] = []
    for graph in graphs:
        rows += [graph, *graph.kernels]
    shown = rows if limit is None or len(rows) + 2 <= limit else rows[: max(0, limit - 3)]
    while shown and len(shown) < len(rows) and isinstance(shown[-1], GraphRecord):
        shown.pop()  # A heading without anything below it says nothing.
    lines = head + list(_table(shown, recording.manifest.cwd))
    if len(shown) < len(rows):
        kernels = sum(isinstance(row, KernelRecord) for row in rows[len(shown) :])
        lines.append(Line(f"  … and {count(kernels, 'kernel')} more: torchsan report --all {place}", "dim"))
    return lines


def _table(rows: list[GraphRecord | KernelRecord], cwd: str) -> Iterator[Line]:
    kernels = [row for row in rows if isinstance(row, KernelRecord)]
    names = min(48, max((len(k.name) for k in kernels), default=0))
    places = min(40, max((len(_location(k, cwd)) for k in kernels), default=0))
    for row in rows:
        if isinstance(row, GraphRecord):
            seconds = f", compiled in {row.compile_seconds:.1f} s" if row.compile_seconds else ""
            yield Line(f"  graph {clean(row.label)}: {count(len(row.kernels), 'kernel')}{seconds}", "bold cyan")
        else:
            place = f"{_location(row, cwd):<{places}}  {_code(row)}".rstrip()
            yield Line(f"    {row.nth:>3}  {clean(row.name):<{names}}  {place}")


def _location(kernel: KernelRecord, cwd: str) -> str:
    """Paths below the folder that the program ran in are shown from there, as the user types them."""
    if not kernel.source:
        return f"({clean(', '.join(kernel.ops) or kernel.kind, 60)})"
    first = kernel.source[0]
    return f"{clean(first.file.removeprefix(f'{cwd.rstrip(os.sep)}{os.sep}'))}:{first.line}"


def _code(kernel: KernelRecord) -> str:
    if not kernel.source:
        return ""
    more = len(kernel.source) - 1
    return clean(kernel.source[0].code.strip(), 60) + (f"  (+{count(more, 'line')})" if more else "")


def kernel_details(recording: Reader, glob: str) -> Iterator[Line]:
    """Yield all that is recorded about the kernels of this name. Raise UsageError if there are none."""
    found = [(g, k) for g in recording.graphs() for k in g.kernels if fnmatch.fnmatchcase(k.name, glob)]
    if not found:
        names = list(dict.fromkeys(k.name for g in recording.graphs() for k in g.kernels))
        raise UsageError(
            f"no kernel of {recording.path} is called {glob}; kernels: {', '.join(names[:8]) or 'none'}"
            + (f" and {len(names) - 8} more" if len(names) > 8 else ""),
            slug="nothing-selected",
        )
    for graph, kernel in found:
        yield Line("")
        yield Line(f"{clean(kernel.name)}: graph {clean(graph.label)}, launch {kernel.nth}, {kernel.kind}", "bold cyan")
        yield from source_lines(kernel.source)
        for name in ("reads", "writes", "nodes", "ops"):
            values = getattr(kernel, name)
            if values:
                yield from field_lines(name, ", ".join(values))


_LINES_OF_SOURCE = 3


def memory_lines(recording: Reader, limit: int | None = None) -> list[Line]:
    """Return a line for each graph, of the call with the highest peak, and below it the source lines that made it.

    In at most `limit` lines: the source lines go first, then the graphs with the lowest peaks.
    """
    calls: dict[tuple[int, str], dict[str, Any]] = {}
    for event in recording.events("memory"):
        key = (int(event["graph"]), str(event["direction"]))
        if key not in calls or event["peak"] > calls[key]["peak"]:
            calls[key] = event
    if not calls:
        return []
    head = [
        Line(""),
        Line("Memory of compiled calls", "bold"),
        Line(f"  {'graph':<14} {'peak':>10} {'planned':>10} {'allocated':>10} {'saved':>10} {'given':>10}", "dim"),
    ]
    if limit is None:
        return head + [line for key, event in calls.items() for line in (_graph(key, event), *_sources(event))]
    room = max(0, limit - len(head))
    shown = dict(calls) if len(calls) <= room else dict(_highest(calls)[: max(0, room - 1)])
    lines = head + [_graph(key, event) for key, event in calls.items() if key in shown]
    if len(shown) < len(calls):
        lines.append(Line(f"  … and {len(calls) - len(shown)} graphs more, with lower peaks", "dim"))
    return lines


def _highest(calls: dict[tuple[int, str], dict[str, Any]]) -> list[tuple[tuple[int, str], dict[str, Any]]]:
    return sorted(calls.items(), key=lambda call: -call[1]["peak"])


def _graph(key: tuple[int, str], event: dict[str, Any]) -> Line:
    figures = " ".join(f"{in_bytes(event[k]):>10}" for k in ("peak", "planned_peak", "allocated", "saved", "given"))
    return Line(f"  {clean(f'{key[0]} {key[1]}'):<14} {figures}")


def _sources(event: dict[str, Any]) -> Iterator[Line]:
    for source in event["by_source"][:_LINES_OF_SOURCE]:
        place = f"{source['file']}:{source['line']}" if source["file"] else "elsewhere"
        module = f" in {source['module']}" if source["module"] else ""
        yield Line(f"  {'':<14} {in_bytes(source['bytes']):>10} {clean(place + module)}")
