"""The report that people read: findings first, then what was looked at, then the verdict and what to type next."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from torchsan.recording import Reader
from torchsan.records import GraphRecord, KernelRecord, Severity
from torchsan.report.findings import Line, clean, finding_lines
from torchsan.report.memory import memory_lines
from torchsan.report.verdict import Status, Verdict, verdict

KERNELS_ON_A_SCREEN = 24
_NAMES_PER_REASON = 4
_STYLES = {Status.CLEAN: "bold green", Status.FINDINGS: "bold red", Status.INCOMPLETE: "bold yellow"}


def print_report(
    recording: Reader, stream: TextIO, *, quiet: bool = False, everything: bool = False, hint: str | None = None
) -> None:
    """Print the report of a recording. `quiet` leaves out what was looked at; `everything` all that limits it."""
    outcome = verdict(recording)
    lines = list(_findings(recording))
    if not quiet:
        lines += [*_program(recording, everything), *memory_lines(recording), *_skipped(recording, everything)]
    lines += _ending(recording, outcome, quiet, hint)
    print_lines(lines, stream)


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines, in colour on a terminal. Their text is shown as it is: rich interprets none of it."""
    if not stream.isatty():
        encoding = stream.encoding or "utf-8"
        text = "".join(f"{line.text}\n" for line in lines)
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(Text(line.text, style=line.style), soft_wrap=True)


def _findings(recording: Reader) -> Iterator[Line]:
    for finding in recording.findings():
        yield Line("")
        yield from finding_lines(finding)


def _program(recording: Reader, everything: bool) -> Iterator[Line]:
    graphs, coverage = recording.graphs(), recording.coverage()
    if not graphs:
        return
    yield Line("")
    yield Line(
        f"Compiled program: {_count(coverage.graphs, 'graph')}, {_count(coverage.kernels, 'kernel')}, "
        f"{_count(coverage.buffers, 'buffer')} ({coverage.buffers_checked} checked), "
        f"{_count(coverage.ops_checked, 'operator')} checked",
        "bold",
    )
    shown = coverage.kernels if everything else KERNELS_ON_A_SCREEN
    cwd = recording.manifest.cwd
    kernels = [k for g in graphs for k in g.kernels]
    names = min(48, max((len(k.name) for k in kernels[:shown]), default=0))
    places = min(40, max((len(_location(k, cwd)) for k in kernels[:shown]), default=0))
    left = shown
    for graph in graphs:
        if left <= 0 and graph.kernels:
            break
        yield _graph(graph)
        for kernel in graph.kernels[:left]:
            place = f"{_location(kernel, cwd):<{places}}  {_code(kernel)}".rstrip()
            yield Line(f"    {kernel.nth:>3}  {clean(kernel.name):<{names}}  {place}")
        left -= len(graph.kernels)
    if coverage.kernels > shown:
        more = coverage.kernels - shown
        yield Line(f"  … and {_count(more, 'kernel')} more: torchsan report --all {_place(recording)}", "dim")


def _graph(graph: GraphRecord) -> Line:
    seconds = f", compiled in {graph.compile_seconds:.1f} s" if graph.compile_seconds else ""
    return Line(f"  graph {clean(graph.label)}: {_count(len(graph.kernels), 'kernel')}{seconds}", "bold cyan")


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
    return clean(kernel.source[0].code.strip(), 60) + (f"  (+{_count(more, 'line')})" if more else "")


def _skipped(recording: Reader, everything: bool) -> Iterator[Line]:
    groups: dict[str, list[str]] = defaultdict(list)
    for skipped in recording.coverage().skipped:
        groups[skipped.reason].append(skipped.what)
    if not groups:
        return
    yield Line("")
    yield Line("Not checked", "bold")
    for reason, whats in sorted(groups.items(), key=lambda group: -len(group[1])):
        names = whats if everything else whats[:_NAMES_PER_REASON]
        more = ", …" if len(whats) > len(names) else ""
        yield Line(f"  {len(whats)} × {clean(reason, 200)}: {clean(', '.join(names), 4000)}{more}")


def _ending(recording: Reader, outcome: Verdict, quiet: bool, hint: str | None) -> Iterator[Line]:
    yield Line("")
    yield Line(f"torchsan: {clean(_verdict_text(recording, outcome))}", _STYLES[outcome.status])
    for reason in outcome.reasons:
        yield Line(f"  {clean(reason)}")
    if hint is not None:
        yield Line(f"  hint: {hint}")
    if not quiet:
        yield Line(f"recording: {_place(recording)}   again: torchsan report {_place(recording)}", "dim")


def _verdict_text(recording: Reader, outcome: Verdict) -> str:
    counts = Counter(f.severity for f in recording.findings())
    found = ", ".join(_count(counts[s], s.value) for s in Severity if counts[s])
    coverage = recording.coverage()
    seen = f"{_count(coverage.kernels, 'kernel')} in {_count(coverage.graphs, 'graph')}"
    match outcome.status:
        case Status.FINDINGS:
            return f"findings: {found}; {seen}"
        case Status.INCOMPLETE:
            return f"incomplete{f' ({found})' if found else ''}: {seen}"
        case Status.CLEAN:
            return f"clean{f' of errors ({found})' if found else ''}: {seen}"


def _place(recording: Reader) -> str:
    cwd = Path.cwd()
    path = recording.path
    return clean(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
