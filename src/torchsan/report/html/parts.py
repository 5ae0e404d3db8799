"""Graphs and their kernels: in launch order, with what each reads and who reads its results, times and verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchsan.recording import Reader
from torchsan.records import (
    CallTimes,
    Check,
    Finding,
    GraphRecord,
    KernelRecord,
    LaunchTime,
    MemoryCall,
    Severity,
    SourceLine,
    TensorSummary,
    Watched,
    decode,
)
from torchsan.report.html.sources import Lines, cut, cut_all, number
from torchsan.report.launches import Launches
from torchsan.torch_internals.wrapper.outline import Wrapper

GraphKey = tuple[int, str]

MOST_KERNELS = 50_000
"""Of all graphs: what a page takes along; `torchsan report --kernels` shows any."""
_NAMES = 64
"""Of the nodes, buffers or operators of one kernel; what is more is counted."""


def fastest(recording: Reader) -> dict[GraphKey, dict[int, LaunchTime]]:
    """Of each graph and launch the fastest of the timed calls: the first one also warms up."""
    best: dict[GraphKey, dict[int, LaunchTime]] = defaultdict(dict)
    for body in recording.events("times"):
        times = decode(CallTimes, body.get("times"))
        of_graph = best[times.graph, times.direction.value]
        for launch in times.launches:
            known = of_graph.get(launch.nth)
            if known is None or launch.seconds < known.seconds:
                of_graph[launch.nth] = launch
    return best


_Operand = tuple[int, str]
"""The number of a launch, and a name that it reads or writes."""


def _flow(
    kernels: Iterable[KernelRecord], aliases: Mapping[str, str]
) -> tuple[dict[_Operand, int], dict[_Operand, list[int]]]:
    """Return for each operand the launch that wrote it last, and for each result those that read it."""
    came_from: dict[_Operand, int] = {}
    goes_to: dict[_Operand, list[int]] = defaultdict(list)
    last: dict[str, _Operand] = {}
    for kernel in kernels:
        for name in kernel.reads:
            found = _follow(name, aliases, last)
            if found is not None:
                came_from[kernel.nth, name] = found[0]
                goes_to[found].append(kernel.nth)
        last.update({name: (kernel.nth, name) for name in kernel.writes})
    return came_from, goes_to


def _follow(name: str, aliases: Mapping[str, str], last: Mapping[str, _Operand]) -> _Operand | None:
    seen: set[str] = set()
    while name not in last and name in aliases and name not in seen:
        seen.add(name)
        name = aliases[name]
    return last.get(name)


def graph_model(
    graph: GraphRecord,
    *,
    findings: Sequence[Finding],
    times: Mapping[int, LaunchTime],
    values: Sequence[Watched],
    checked: Mapping[Check, frozenset[str]],
    wrapper: Wrapper,
    lines: Lines,
    most: int = MOST_KERNELS,
) -> dict[str, Any]:
    """Return what the page shows of a graph, of `most` kernels. `findings` and `values` are those of this graph.

    `checked` are the buffers that each check has looked at which looks at buffers.
    """
    blamed: dict[int, list[Finding]] = defaultdict(list)
    launches = Launches(graph)
    for finding in findings:
        nth = launches.blamed(finding)
        if nth is not None:
            blamed[nth].append(finding)
    came_from, goes_to = _flow(graph.kernels, wrapper.aliases)
    wanted = set(graph.buffers)
    parts: dict[str, set[str]] = defaultdict(set)  # What an operator with several results has returned is unpacked.
    for name in wanted:
        parts[wrapper.aliases.get(name, name)].add(name)
    results = {k.nth: {part for n in k.writes for part in ({n} & wanted or parts[n])} for k in graph.kernels}
    verdicts = {k.nth: _verdicts(results[k.nth], blamed[k.nth], checked) for k in graph.kernels[:most]}
    ranges = _ranges(values)
    return {
        "id": graph.id,
        "direction": graph.direction.value,
        "seconds": number(graph.compile_seconds, 4),
        "inputs": cut_all(graph.inputs, 2000),
        "buffers": len(graph.buffers),
        "checked": len(wanted.intersection(frozenset().union(*checked.values()))),
        "kernels": [
            {
                "nth": k.nth,
                "name": cut(k.name, 300),
                "kind": k.kind.value,
                "reads": [[cut(n, 200), came_from.get((k.nth, n))] for n in k.reads[:_NAMES]],
                "writes": [[cut(n, 200), goes_to.get((k.nth, n), [])[:_NAMES]] for n in k.writes[:_NAMES]],
                "nodes": cut_all(k.nodes, _NAMES),
                "ops": cut_all(k.ops, _NAMES),
                "source": lines.numbers(k.source[:_NAMES]),
                "verdict": _verdict(verdicts[k.nth]),
                "checks": verdicts[k.nth],
                "findings": [f.id for f in blamed[k.nth]],
                "line": wrapper.launched.get(k.nth),
                **_time(times.get(k.nth)),
                "range": ranges.get(k.nth),
            }
            for k in graph.kernels[:most]
        ],
        "left_out": max(0, len(graph.kernels) - most),
    }


def _time(time: LaunchTime | None) -> dict[str, Any]:
    if time is None:
        return {}
    moved = [time.bytes_read, time.bytes_written]
    return {"seconds": number(time.seconds, 4), "launches": time.launches, "bytes": moved}


def _verdicts(
    results: set[str], findings: Sequence[Finding], checked: Mapping[Check, frozenset[str]]
) -> dict[str, str]:
    """What each check says of a kernel, in one word: `error`, `warning` or `note` of its worst finding, or else how
    much it has looked at of what the kernel computes.
    """
    verdicts = {}
    for check, names in checked.items():
        looked = results & names
        verdicts[check.value] = "unchecked" if not looked else "right" if looked == results else "partly"
    for finding in sorted(findings, key=lambda f: f.severity.rank):
        verdicts[finding.check.value] = finding.severity.value
    return verdicts


def _verdict(verdicts: Mapping[str, str]) -> str:
    """What all checks together say."""
    said = set(verdicts.values())
    for severity in Severity:
        if severity.value in said:
            return severity.value
    return said.pop() if len(said) == 1 else "partly" if said else "unchecked"


def _ranges(values: Iterable[Watched]) -> dict[int, list[Any]]:
    """Of each launch, over what it was seen to write: least, greatest, and how many NaN and infinite elements."""
    found: dict[int, list[Any]] = {}
    for w in values:
        s = w.summary
        if w.site is None or w.phase != "after" or s is None:
            continue
        low, high, nan, infinite = found.get(w.site, [None, None, 0, 0])
        if s.minimum is not None and s.maximum is not None:
            low = s.minimum if low is None else min(low, s.minimum)
            high = s.maximum if high is None else max(high, s.maximum)
        found[w.site] = [low, high, nan + s.nan, infinite + s.posinf + s.neginf]
    return {site: [number(low, 6), number(high, 6), n, i] for site, (low, high, n, i) in found.items()}


_CALLS = 400
_LIVES = 3000


def memory_part(recording: Reader, graphs: dict[GraphKey, int], lines: Lines) -> list[dict[str, Any]]:
    """Return the calls in the order in which they were made."""
    calls = [decode(MemoryCall, body) for body in recording.events("memory")]
    return [_call(call, graphs, lines) for call in calls[:_CALLS]]


def _call(call: MemoryCall, graphs: dict[GraphKey, int], lines: Lines) -> dict[str, Any]:
    points = [p for p in call.timeline if len(p) == 3]
    modules: dict[str, int] = defaultdict(int)
    for part in call.by_source:
        modules[part.module] += part.bytes
    return {
        "graph": graphs.get((call.graph, call.direction.value), -1),
        "label": f"{call.graph} {call.direction.value}",
        "call": call.call,
        "figures": {k: getattr(call, k) for k in ("peak", "planned_peak", "allocated", "given", "saved", "returned")},
        "line": [p[0] for p in points],
        "planned": [p[1] for p in points],
        "actual": [p[2] for p in points],
        "at_peak": [[cut(b.buffer, 200), b.bytes] for b in call.at_peak[:50]],
        "by_module": [[cut(m, 200), n] for m, n in sorted(modules.items(), key=lambda item: -item[1])[:100]],
        "by_line": [
            [lines.number(SourceLine(file=s.file, line=s.line, module=s.module)) if s.file else None, s.bytes]
            for s in call.by_source[:100]
        ],
        "lives": [
            [cut(b.buffer, 200), b.bytes, b.born, b.freed, b.died, cut(b.module, 200)] for b in call.lives[:_LIVES]
        ],
    }


MOST_VALUES = 100_000
"""What a page takes along; the rest is in the recording."""

_STATISTICS = {
    **dict.fromkeys(("minimum", "maximum", "mean", "std"), 6),
    **dict.fromkeys(("count", "nan", "posinf", "neginf", "zeros", "subnormals")),
}
"""Of each value, with how many digits; None for all."""


def values_part(values: Sequence[Watched], graphs: dict[GraphKey, int], watched: int) -> dict[str, Any]:
    """Return the values in the order in which they were seen, column by column; `watched` is how many there were.

    `graph` is a position in the page's graphs, -1 for probes; texts are positions in `texts`.
    """
    texts: dict[str, int] = {}  # They come again and again.

    def text(shown: str) -> int:
        return texts.setdefault(cut(shown, 300), len(texts))

    summaries = [w.summary for w in values]
    columns: dict[str, list[Any]] = {
        "graph": [_graph(w, graphs) for w in values],
        "call": [w.call for w in values],
        "launch": [w.launch for w in values],
        "site": [w.site for w in values],
        "after": [int(w.phase == "after") for w in values],
        "kernel": [text(w.kernel) for w in values],
        "name": [text(w.name) for w in values],
        "node": [text(w.node or "") for w in values],
        "type": [text(_type(s)) for s in summaries],
        "note": [text(_note(w)) for w in values],
        "elements": [_elements(s) for s in summaries],
    }
    for name, digits in _STATISTICS.items():
        columns[name] = [number(getattr(s, name), digits) if s is not None else None for s in summaries]
    return {"texts": list(texts), "columns": columns, "all": watched}


def _graph(w: Watched, graphs: dict[GraphKey, int]) -> int:
    return -1 if w.graph is None or w.direction is None else graphs.get((w.graph, w.direction.value), -1)


def _type(s: TensorSummary | None) -> str:
    if s is None:
        return ""
    return f"{s.meta.dtype}[{', '.join('?' if n is None else str(n) for n in s.meta.shape)}]"


def _note(w: Watched) -> str:
    if w.summary is not None:
        return w.summary.reason or ""
    return "" if w.value is None else f"= {w.value}"


def _elements(s: TensorSummary | None) -> str | None:
    """All elements of a small tensor, as a text."""
    if s is None or not s.values:
        return None
    return cut(", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in s.values), 1200)
