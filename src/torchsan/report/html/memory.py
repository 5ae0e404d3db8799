"""Bytes over the steps of the calls that the memory check followed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torchsan.recording import Reader
from torchsan.records import MemoryCall, SourceLine, decode
from torchsan.report.html.bounds import cut
from torchsan.report.html.lines import Lines
from torchsan.report.html.program import GraphKey

__all__ = ["memory_part"]

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
