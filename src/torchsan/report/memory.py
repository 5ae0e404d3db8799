"""The figures of the memory check as a short table: what each compiled graph had alive at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchsan.recording import Reader
from torchsan.records.sizes import in_bytes
from torchsan.report.findings import Line, clean

__all__ = ["memory_lines"]

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
