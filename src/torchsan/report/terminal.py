"""The report that people read: findings first, then what was looked at, then the verdict and what to type next."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import PurePath
from typing import TextIO

from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.records import Coverage, Finding, GapKind, GraphRecord, KernelRecord, MemoryCall, Severity, decode
from torchsan.records.suppression import Suppression
from torchsan.records.tensor import in_bytes
from torchsan.report.findings import (
    Line,
    began_at,
    clean,
    count,
    field_lines,
    finding_line,
    finding_lines,
    in_module,
    seen_text,
    severities_text,
    shown_file,
    shown_place,
    skipped_by_reason,
    source_lines,
    times,
    with_consequences,
)
from torchsan.report.launches import Launches
from torchsan.report.printing import print_lines
from torchsan.report.verdict import Status, Verdict, counting, idle_suppressions, suppressed_by, verdict

_Section = tuple[Callable[[int | None], list[Line]], int]
"""A part of the report: a function that gives it in at most so many lines, or whole for None; and its share, which is
how many lines it may take whatever the others need, at least what it takes to say what it leaves out.
"""


def _fitted(sections: Sequence[_Section], limit: int | None) -> list[Line]:
    """Return the sections in at most `limit` lines; None for no limit. Lines that one does not need go to the first."""
    whole = [render(None) for render, _ in sections]
    if limit is None or sum(map(len, whole)) <= limit:
        return [line for lines in whole for line in lines]
    given = [min(len(lines), share) for lines, (_, share) in zip(whole, sections, strict=True)]
    for i, lines in enumerate(whole):
        given[i] += min(max(0, limit - sum(given)), len(lines) - given[i])
    return [
        line
        for (render, _), lines, n in zip(sections, whole, given, strict=True)
        for line in (lines if len(lines) <= n else render(n))
    ]


SCREEN = 60
"""Lines of a report at most, unless all of it is asked for."""
_NAMES_PER_REASON = 4
_REASONS = 6
STATUS_STYLES = {Status.CLEAN: "bold green", Status.FINDINGS: "bold red", Status.INCOMPLETE: "bold yellow"}


def print_report(
    recording: Reader,
    stream: TextIO,
    *,
    quiet: bool = False,
    verbose: bool = True,
    everything: bool = False,
    hint: str | None = None,
    shown: Mapping[str, Finding] | None = None,
) -> None:
    """Print the report of a recording, on one screen.

    `quiet` leaves out what was looked at, and `everything` no line. Not `verbose`: one line if all is clean, and else
    the findings but notes, and the kernels beside the culprits; or all kernels and what was not checked if it is
    incomplete. Findings that are `shown` already, by their ids, have one line.
    """
    outcome, place = verdict(recording), clean(shown_place(recording))
    if outcome.status is Status.CLEAN and not (quiet or verbose or everything or any(idle_suppressions(recording))):
        line = _verdict_line(recording, outcome)
        ending = [Line(f"{line.text}; recording: {place}", line.style), *_suppressed(recording)]
    else:
        ending = _ending(recording, outcome, quiet, everything, hint)
    if not quiet and not (verbose or everything) and (gaps := gaps_text(recording.coverage())):
        ending.append(
            Line(f"torchsan: {gaps_heading(recording.coverage())}: {gaps}; why: torchsan report {place}", "dim")
        )
    sections: list[_Section] = [(partial(_findings, recording, place, verbose or everything, shown or {}), 26)]
    if not quiet and (verbose or everything):
        sections += [
            (partial(_program, recording, place, None, everything), 14),
            (partial(_gaps, recording, place), 8),
            (partial(_memory, recording), 8),
            (partial(_skipped, recording, place, everything), 6),
        ]
    elif not quiet:
        sections += _what_matters(recording, place, outcome.status)
    print_lines([*_fitted(sections, None if everything else SCREEN - len(ending)), *ending], stream)


def _what_matters(recording: Reader, place: str, status: Status) -> list[_Section]:
    """Why a run is incomplete, or the kernels beside the culprits."""
    if status is Status.INCOMPLETE:
        return [(partial(_program, recording, place, None, False), 14), (partial(_skipped, recording, place, False), 6)]
    culprits = {f.kernel for f in counting(recording) if f.kernel and f.severity is not Severity.NOTE}
    return [(partial(_program, recording, place, culprits, False), 14)] if culprits else []


def print_finding(recording: Reader, name: str, stream: TextIO) -> None:
    """Print one finding with all of its evidence. Raise UsageError if there is none of this name."""
    found = [f for f in recording.findings() if f.id.lower() == name.lower()]
    if not found:
        names = ", ".join(f.id for f in recording.findings()[:8]) or "none"
        raise UsageError(f"no finding {name} in {recording.path}; findings: {names}", slug="no-finding")
    print_lines(finding_lines(found[0], began=began_at(recording.manifest), most=None), stream)


def _findings(
    recording: Reader, place: str, notes: bool, shown: Mapping[str, Finding], limit: int | None
) -> list[Line]:
    """The findings: whole ones as long as there is room, then a line each, then how many there are more.

    Those that follow from another stand with it, and those that were shown before have a line.
    """
    known = {f.id: suppressed_by(recording, f) for f in recording.findings()}
    findings = [f for f in recording.findings() if notes or (f.severity is not Severity.NOTE and not known[f.id])]
    began = began_at(recording.manifest)
    grouped = _grouped(findings, known)
    again = [each for f, more in grouped if shown.get(f.id) == f for each in (f, *more)]
    rest = [
        (f, [Line(""), *finding_lines(f, known[f.id], began=began, consequences=more)])
        for f, more in grouped
        if shown.get(f.id) != f
    ]
    # Room for the lines of the others: at least a few of them should be named.
    room = None if limit is None else limit - min(len(rest) + len(again) + 2, 8)
    if limit is not None and sum(len(block) for _, block in rest) + (len(again) + 2 if again else 0) <= limit:
        room = None
    lines = _whole(rest, place, room)
    heading = [Line("Shown above, when they were found:", "bold")] if again else []
    others = [*again, *(f for f, _ in rest)]
    left = None if limit is None else limit - len(lines) - 1 - len(heading)
    return [*lines, Line(""), *heading, *_a_line_each(others, place, left)] if others else lines


def _grouped(findings: list[Finding], known: Mapping[str, Suppression | None]) -> list[tuple[Finding, list[Finding]]]:
    """Each finding with what follows from it. What counts must not stand below a cause that is suppressed."""
    apart = ([f for f in findings if (known[f.id] is None) is counts] for counts in (True, False))
    order = {f.id: n for n, f in enumerate(findings)}
    return sorted((each for some in apart for each in with_consequences(some)), key=lambda each: order[each[0].id])


def _whole(rest: list[tuple[Finding, list[Line]]], place: str, room: int | None) -> list[Line]:
    """Take from the findings those that there is room for, with all their lines; at least the first, cut if need be."""
    lines: list[Line] = []
    while rest and (room is None or len(lines) + len(rest[0][1]) <= room):
        lines += rest.pop(0)[1]
    if rest and not lines and room is not None:
        finding, block = rest.pop(0)
        cut = block[: max(2, room - 1)]
        where = f"torchsan report --finding {clean(finding.id)} {place}"
        lines = [*cut, Line(f"    … {len(block) - len(cut)} lines more: {where}", "dim")]
    return lines


def _a_line_each(findings: list[Finding], place: str, limit: int | None) -> list[Line]:
    """A line for each finding as long as there is room, and one that says how many there are more."""
    if limit is None or len(findings) <= limit:
        return [finding_line(f) for f in findings]
    named = findings[: max(0, limit - 1)]
    return [*map(finding_line, named), _more("", len(findings) - len(named), "finding", place)]


def _skipped(recording: Reader, place: str, everything: bool, limit: int | None) -> list[Line]:
    groups = skipped_by_reason(recording.coverage())
    if not groups:
        return []
    lines = [Line(""), Line("Not checked", "bold")]
    shown = groups if limit is None or len(groups) + 2 <= limit else groups[: max(0, limit - 3)]
    for reason, whats in shown:
        names = whats if everything else whats[:_NAMES_PER_REASON]
        more = ", …" if len(whats) > len(names) else ""
        lines.append(Line(f"  {times(len(whats), clean(reason, 200))}: {clean(', '.join(names), 4000)}{more}"))
    if len(shown) < len(groups):
        lines.append(_more("  ", len(groups) - len(shown), "reason", place))
    return lines


_GAPS = {GapKind.GRAPH_BREAK: "graph break", GapKind.RECOMPILE: "recompile", GapKind.EAGER: "function in plain Python"}


def gaps_text(coverage: Coverage) -> str:
    """Return how often there was no compiled code, as in `1 graph break, 3 recompiles`; empty if there always was."""
    times = Counter[GapKind]()
    for gap in coverage.gaps:
        # A function that falls back stays with plain Python: that it is called again is nothing new.
        times[gap.kind] += 1 if gap.kind is GapKind.EAGER else gap.times
    words = [count(times[kind], name) for kind, name in _GAPS.items() if times[kind]]
    return ", ".join(words).replace("function in plain Pythons", "functions in plain Python")


def gaps_heading(coverage: Coverage) -> str:
    """Return what the gaps amount to: a recompile leaves nothing uncompiled."""
    recompiled = all(gap.kind is GapKind.RECOMPILE for gap in coverage.gaps)
    return "compiled more than once" if recompiled else "not all was compiled"


def _gaps(recording: Reader, place: str, limit: int | None) -> list[Line]:
    """What was not compiled, or more than once, and how many calls of each graph were checked."""
    gaps = sorted(recording.coverage().gaps, key=lambda gap: (list(_GAPS).index(gap.kind), -gap.times))
    calls = recording.calls()
    lines = [Line("")]
    if calls:
        each = [f"graph {c.graph} {c.direction} {c.checked} of {c.seen}" for c in calls]
        lines += [Line(f"Calls checked: {clean(', '.join(each), 300)}", "bold")]
    if gaps:
        heading = gaps_heading(recording.coverage()).capitalize()
        lines.append(Line(f"{heading}: {gaps_text(recording.coverage())}", "bold"))
    room = len(gaps) if limit is None else limit - len(lines)
    shown = gaps if len(gaps) <= room else gaps[: max(0, room - 1)]
    for gap in shown:
        where = f"{shown_file(gap.file)}:{gap.line}" if gap.file else gap.function
        times = f" ({gap.times} times)" if gap.times > 1 else ""
        what = f"{gap.function} runs as plain Python" if gap.kind is GapKind.EAGER else _GAPS[gap.kind]
        lines.append(Line(f"  {clean(what)} at {clean(where)}{times}: {clean(gap.reason, 160)}"))
    if len(shown) < len(gaps):
        lines.append(_more("  ", len(gaps) - len(shown), "of these", place))
    return lines if len(lines) > 1 else []


def _more(indent: str, n: int, what: str, place: str) -> Line:
    return Line(f"{indent}… and {count(n, what)} more: torchsan report --all {place}", "dim")


def _ending(recording: Reader, outcome: Verdict, quiet: bool, everything: bool, hint: str | None) -> list[Line]:
    lines = [Line(""), _verdict_line(recording, outcome)]
    reasons = outcome.reasons if everything else outcome.reasons[:_REASONS]
    lines += [Line(f"  {clean(reason)}") for reason in reasons]
    idle = [Line(f"  {clean(text)}") for text in idle_suppressions(recording)]
    lines += idle if everything else idle[:_REASONS]
    if not everything and len(idle) > _REASONS:
        lines.append(_more("  ", len(idle) - _REASONS, "suppression", clean(shown_place(recording))))
    if hint is not None:
        lines.append(Line(f"  hint: {hint}"))
    if not quiet:
        place = clean(shown_place(recording))
        lines.append(Line(f"recording: {place}   again: torchsan report {place}", "dim"))
        worst = next((f for f in counting(recording) if f.severity is Severity.ERROR), None)
        if worst is not None:
            kept = worst.id in recording.reproducible()
            command = f"torchsan repro {place} {clean(worst.id)}{_loads(recording, worst)}"
            script = f"   as a script: {command}" if kept else ""
            lines.append(Line(f"next: torchsan explain {worst.kind}{script}   as a page: torchsan open {place}", "dim"))
    return lines


def _suppressed(recording: Reader) -> list[Line]:
    """A line for each finding that does not count, with the reason."""
    pairs = [(f, known) for f in recording.findings() if (known := suppressed_by(recording, f)) is not None]
    lines = [Line(f"  {clean(f.id)} suppressed: {f.kind}: {clean(known.reason)}", "dim") for f, known in pairs]
    more = [_more("  ", len(lines) - _REASONS, "of these", clean(shown_place(recording)))]
    return lines[:_REASONS] + (more if len(lines) > _REASONS else [])


def _loads(recording: Reader, finding: Finding) -> str:
    """What `repro` needs to be told to find a pass of the user's own: the file it is in, if that is not the program."""
    step = finding.evidence.get("pass")
    function = step.get("function") if isinstance(step, dict) else None
    found = re.search(r" at (.+\.py):\d+$", function) if isinstance(function, str) else None
    if found is None or PurePath(found[1]).name in {PurePath(word).name for word in recording.manifest.command}:
        return ""
    # A recording may come from elsewhere, and this is pasted into a shell.
    return f" --load {shlex.quote(clean(_from_folder(found[1], recording.manifest.cwd)))}"


def _verdict_line(recording: Reader, outcome: Verdict) -> Line:
    return Line(f"torchsan: {clean(verdict_text(recording, outcome))}", STATUS_STYLES[outcome.status])


def verdict_text(recording: Reader, outcome: Verdict) -> str:
    """Return the verdict in one line: the word, how many findings there are, and what was looked at."""
    findings, seen = counting(recording), seen_text(recording)
    found = severities_text(findings)
    if suppressed := len(recording.findings()) - len(findings):
        found = f"{found}, {suppressed} suppressed" if found else f"{suppressed} suppressed"
    match outcome.status:
        case Status.FINDINGS:
            return f"findings: {found}; {seen}"
        case Status.INCOMPLETE:
            return f"incomplete{f' ({found})' if found else ''}: {seen}"
        case Status.CLEAN:
            return f"clean{f' of errors ({found})' if found else ''}: {seen}"


_BESIDE = 2
"""How many launches before and after a culprit are shown."""


def _program(
    recording: Reader, place: str, culprits: Set[str] | None, everything: bool, limit: int | None
) -> list[Line]:
    """Return the graphs and their kernels in launch order, in at most `limit` lines; only those beside `culprits`."""
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
        near = graph.kernels if culprits is None else _beside(graph, culprits)
        rows += [graph, *near] if near or culprits is None else []
    shown = rows if limit is None or len(rows) + 2 <= limit else rows[: max(0, limit - 3)]
    while shown and len(shown) < len(rows) and isinstance(shown[-1], GraphRecord):
        shown.pop()  # A heading without anything below it says nothing.
    longest = None if everything else _LONGEST_NAME
    lines = head + list(_table(shown, recording.manifest.cwd, _blamed(recording), longest))
    kernels = coverage.kernels - sum(isinstance(row, KernelRecord) for row in shown)
    if kernels > 0:
        lines.append(_more("  ", kernels, "kernel", place))
    return lines


def _beside(graph: GraphRecord, culprits: Set[str]) -> tuple[KernelRecord, ...]:
    """The culprits among the kernels of a graph, with those launched just before and after them."""
    found = [n for n, kernel in enumerate(graph.kernels) if kernel.name in culprits]
    near = {n + d for n in found for d in range(-_BESIDE, _BESIDE + 1)}
    return tuple(kernel for n, kernel in enumerate(graph.kernels) if n in near)


_Blamed = dict[tuple[int, str, int], list[str]]
"""The findings about each launch, by graph, direction and number."""


def _blamed(recording: Reader) -> _Blamed:
    launches = {(g.id, g.direction): Launches(g) for g in recording.graphs()}
    found: _Blamed = defaultdict(list)
    for f in counting(recording):
        if f.kernel and f.graph is not None and f.severity is not Severity.NOTE:
            of_graph = launches.get((f.graph.id, f.graph.direction))
            nth = of_graph.blamed(f) if of_graph is not None else None
            if nth is not None:
                found[f.graph.id, f.graph.direction, nth].append(f.id)
    return found


_LONGEST_NAME = 56


def _shortened(name: str, longest: int | None) -> str:
    """A name with its middle left out: it is told from others by how it begins and by the number at its end."""
    if longest is None or len(name) <= longest:
        return name
    return f"{name[: longest - 13]}…{name[-12:]}"


def _table(rows: list[GraphRecord | KernelRecord], cwd: str, blamed: _Blamed, longest: int | None) -> Iterator[Line]:
    kernels = [row for row in rows if isinstance(row, KernelRecord)]
    names = min(_LONGEST_NAME, max((len(k.name) for k in kernels), default=0))
    files = {file: _file(file, cwd) for file in {k.source[0].file for k in kernels if k.source}}
    located = [_location(k, files) for k in kernels]
    places = min(40, max(map(len, located), default=0))
    each = iter(located)
    graph: GraphRecord | None = None
    for row in rows:
        if isinstance(row, GraphRecord):
            seconds = f", compiled in {row.compile_seconds:.1f} s" if row.compile_seconds else ""
            graph = row
            yield Line(f"  graph {clean(row.label)}: {count(len(row.kernels), 'kernel')}{seconds}", "bold cyan")
        else:
            place = f"{next(each):<{places}}  {_code(row)}".rstrip()
            ids = blamed.get((graph.id, graph.direction, row.nth)) if graph is not None else None
            mark = f"  <- {clean(', '.join(ids), 60)}" if ids else ""
            yield Line(
                f"    {row.nth:>3}  {_shortened(clean(row.name), longest):<{names}}  {place}{mark}",
                "bold" if ids else "",
            )


def _file(file: str, cwd: str) -> str:
    """Paths below the folder that the program ran in are shown from there, as the user types them."""
    return clean(shown_file(_from_folder(file, cwd)))


def _location(kernel: KernelRecord, files: Mapping[str, str]) -> str:
    if not kernel.source:
        return f"({clean(', '.join(kernel.ops) or kernel.kind, 60)})"
    first = kernel.source[0]
    return f"{files[first.file]}:{first.line}"


def _from_folder(file: str, cwd: str) -> str:
    return file.removeprefix(f"{cwd.rstrip(os.sep)}{os.sep}")


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


def _memory(recording: Reader, limit: int | None = None) -> list[Line]:
    """Return a line for each graph, of the call with the highest peak, and below it the source lines that made it.

    In at most `limit` lines: the source lines go first, then the graphs with the lowest peaks.
    """
    calls: dict[tuple[int, str], MemoryCall] = {}
    for call in (decode(MemoryCall, event) for event in recording.events("memory")):
        key = (call.graph, call.direction.value)
        if key not in calls or call.peak > calls[key].peak:
            calls[key] = call
    if not calls:
        return []
    head = [
        Line(""),
        Line("Memory of compiled calls", "bold"),
        Line(f"  {'graph':<14} {'peak':>10} {'planned':>10} {'allocated':>10} {'saved':>10} {'given':>10}", "dim"),
    ]
    if limit is None:
        return head + [line for call in calls.values() for line in (_graph(call), *_sources(call))]
    room = max(0, limit - len(head))
    highest = sorted(calls.items(), key=lambda item: -item[1].peak)
    shown = calls if len(calls) <= room else dict(highest[: max(0, room - 1)])
    lines = head + [_graph(call) for key, call in calls.items() if key in shown]
    if len(shown) < len(calls):
        lines.append(Line(f"  … and {len(calls) - len(shown)} graphs more, with lower peaks", "dim"))
    return lines


def _graph(call: MemoryCall) -> Line:
    figures = " ".join(
        f"{in_bytes(n):>10}" for n in (call.peak, call.planned_peak, call.allocated, call.saved, call.given)
    )
    return Line(f"  {f'{call.graph} {call.direction}':<14} {figures}")


def _sources(call: MemoryCall) -> Iterator[Line]:
    for source in call.by_source[:_LINES_OF_SOURCE]:
        place = f"{shown_file(source.file)}:{source.line}" if source.file else "elsewhere"
        yield Line(f"  {'':<14} {in_bytes(source.bytes):>10} {clean(place + in_module(source.module))}")
