"""The figures of the memory check as a short table: what each compiled graph had alive at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchsan.recording import Reader
from torchsan.report.findings import Line, clean
from torchsan.report.sizes import size_text

__all__ = ["memory_lines"]

_LINES_OF_SOURCE = 3
_GRAPHS = 12


def memory_lines(recording: Reader) -> Iterator[Line]:
    """Yield a line for each graph, of the call with the highest peak, and below it the source lines that made it."""
    calls: dict[tuple[int, str], dict[str, Any]] = {}
    for event in recording.events("memory"):
        key = (int(event["graph"]), str(event["direction"]))
        if key not in calls or event["peak"] > calls[key]["peak"]:
            calls[key] = event
    if not calls:
        return
    yield Line("")
    yield Line("Memory of compiled calls", "bold")
    yield Line(f"  {'graph':<14} {'peak':>10} {'planned':>10} {'allocated':>10} {'saved':>10} {'given':>10}", "dim")
    for (graph, direction), event in list(calls.items())[:_GRAPHS]:
        figures = " ".join(
            f"{size_text(event[k]):>10}" for k in ("peak", "planned_peak", "allocated", "saved", "given")
        )
        yield Line(f"  {clean(f'{graph} {direction}'):<14} {figures}")
        for source in event["by_source"][:_LINES_OF_SOURCE]:
            place = f"{source['file']}:{source['line']}" if source["file"] else "elsewhere"
            module = f" in {source['module']}" if source["module"] else ""
            yield Line(f"  {'':<14} {size_text(source['bytes']):>10} {clean(place + module)}")
    if len(calls) > _GRAPHS:
        yield Line(f"  … and {len(calls) - _GRAPHS} graphs more, in the recording", "dim")
