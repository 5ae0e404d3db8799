"""A comparison for programs, as JSON, and as a web page of text."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

from torchsan._version import __version__
from torchsan.diff.result import Diff, Judged, Run
from torchsan.diff.text import Row, apart, firsts, given_text, rows, verdict_text, where
from torchsan.records import encode
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.findings import count
from torchsan.report.html.plain import badge, code, items, page, section, table, text

DIFF_SCHEMA = 1


def diff_schema() -> dict[str, Any]:
    """Return the JSON Schema of the comparison."""
    text = resources.files("torchsan.diff").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def as_json(diff: Diff) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    body: dict[str, Any] = encode(diff)
    return {"schema": DIFF_SCHEMA, "torchsan": __version__, **body}


_KINDS = {"different": "error", "incomplete": "warning"}


def as_html(diff: Diff) -> str:
    """Return one page that needs nothing else, in the style of the report; everything in it is escaped text."""
    parts = [
        section(verdict_text(diff), items(diff.reasons)),
        section("The two runs", table(("", "A", "B"), _runs(diff))),
        *_first(diff),
        section("Along the program", _picture(diff)) if diff.values else "",
        section("First of each kind", table(("kind", "first difference"), firsts(diff))),
    ]
    cells: list[tuple[str, ...]]
    if diff.values:
        parts.append(section("Values that differ", table(Row.headings(), rows(diff))))
    for title, found in (("Operators that differ", diff.operators), ("Kernels that differ", diff.kernels)):
        cells = [(each.graph, "\n".join(each.a), "\n".join(each.b)) for each in found]
        parts.append(section(title, table(("graph", "A", "B"), cells)) if cells else "")
    if diff.not_compared:
        cells = [(s.what, s.reason) for s in diff.not_compared]
        parts.append(section("Not compared", table(("what", "why"), cells)))
    return page("torchsan diff", badge(diff.status, _KINDS.get(diff.status, "right")), *parts)


_COLOURS = {Judged.DIFFERENT: "bad", Judged.UNDECIDED: "bad", Judged.FOLLOWS: "follows", Judged.ROUNDING: "fine"}
_WIDTH, _HEIGHT, _WIDEST, _MOST_BARS = 960, 120, 24.0, 480


def _picture(diff: Diff) -> str:
    """How far the values that differ are apart, in the order of the program: a bar each, by order of magnitude."""
    values = [v for v in diff.values if v.spread is not None][:_MOST_BARS]
    if not values:
        return ""
    step = min(_WIDEST, _WIDTH / len(values))
    bars = []
    for n, value in enumerate(values):
        size = value.spread or 0.0
        share = 1.0 if not math.isfinite(size) else min(1.0, max(0.02, (math.log10(max(size, 1e-16)) + 16) / 16))
        name = text(f"{where(value)}: {value.judged}, {size:.2g} of its size", 300)
        bars.append(
            f'<rect class="{_COLOURS.get(value.judged, "fine")}" x="{n * step:.1f}" y="{_HEIGHT * (1 - share):.1f}" '
            f'width="{max(1.0, step - 1):.1f}" height="{_HEIGHT * share:.1f}"><title>{name}</title></rect>'
        )
    return (
        "<figure><figcaption><b>Where the runs begin to differ</b><span>Each bar is a value that differs, in the order "
        "of the program; its height is the difference beside the size of the value, from 1e-16 to 1. Red is more than "
        "rounding, and than what it was computed from, explain; blue follows from what came before; green is "
        "rounding.</span>"
        f'</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Where the runs begin to differ">'
        f"{''.join(bars)}</svg></figure>"
    )


def _runs(diff: Diff) -> list[tuple[str, str, str]]:
    a, b = diff.a, diff.b
    return [
        ("recording", a.path, b.path),
        ("command", " ".join(a.command), " ".join(b.command)),
        ("torch", a.torch, b.torch),
        ("started", a.started, b.started),
        ("compiled", _size(a), _size(b)),
        *((c.what, c.a, c.b) for c in diff.circumstances if c.what not in ("command", "torch")),
    ]


def _size(run: Run) -> str:
    return f"{count(run.graphs, 'graph')}, {count(run.kernels, 'kernel')}"


def _first(diff: Diff) -> list[str]:
    if diff.first is None:
        return []
    value = diff.first
    evidence = [*given_text(value), *value.text, *([apart(value.comparison)] if value.comparison is not None else [])]
    source = "\n".join(f"{s.file}:{s.line}\n    {s.code}" for s in value.source)
    return [section(f"First difference: {where(value)}", code(source) if source else "", items(evidence))]


class DiffJsonExporter(Exporter[Diff]):
    """Writes a comparison for programs."""

    name = "json"
    help = "write the comparison for programs to FILE, or to - for stdout"

    def render(self, subject: Diff) -> str:
        return json_text(as_json(subject))


class DiffHtmlExporter(Exporter[Diff]):
    """Writes a comparison as a web page."""

    name = "html"
    help = "write the comparison as a web page to FILE"

    def render(self, subject: Diff) -> str:
        return as_html(subject)


DIFF_EXPORTERS: tuple[Exporter[Diff], ...] = (DiffJsonExporter(), DiffHtmlExporter())
