"""Watched values as columns: 20,000 of them are some hundred kilobytes, and a browser reads them in an instant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchsan.records import TensorSummary, Watched
from torchsan.report.html.bounds import cut, number
from torchsan.report.html.program import GraphKey

__all__ = ["MOST_VALUES", "values_part"]

MOST_VALUES = 100_000
"""What a page takes along; the rest is in the recording."""

_NUMBERS = ("minimum", "maximum", "mean", "std")
_COUNTS = ("count", "nan", "posinf", "neginf", "zeros", "subnormals")


class _Names:
    """Texts that come again and again, each once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.texts.setdefault(cut(text, 300), len(self.texts))


def values_part(values: Sequence[Watched], graphs: dict[GraphKey, int], watched: int) -> dict[str, Any]:
    """Return the values in the order in which they were seen, column by column; `watched` is how many there were.

    `graph` is a position in the page's graphs, -1 for probes; texts are positions in `texts`.
    """
    text = _Names()
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
    for name in _NUMBERS:
        columns[name] = [number(getattr(s, name), 6) if s is not None else None for s in summaries]
    for name in _COUNTS:
        columns[name] = [number(getattr(s, name)) if s is not None else None for s in summaries]
    return {"texts": list(text.texts), "columns": columns, "all": watched}


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
