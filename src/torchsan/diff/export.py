"""A comparison for programs, as JSON, and as a web page that runs nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any

from torchsan._version import __version__
from torchsan.diff.result import Diff
from torchsan.diff.text import Row, apart, firsts, rows, verdict_text, where
from torchsan.records import encode
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.findings import clean

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


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
code, pre, td { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
.verdict { border-left: .4rem solid #888; padding: .3rem 1rem; font-weight: 600; }
.different { border-color: #c22; } .same, .rounding { border-color: #2a2; } .incomplete { border-color: #b80; }
"""


def as_html(diff: Diff) -> str:
    """Return one page that needs nothing else and allows no script; everything in it is escaped text."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    parts = [
        f'<p class="verdict {diff.status}">{_text(verdict_text(diff))}</p>',
        _list(diff.reasons),
        "<h2>The two runs</h2>",
        _table(("", "A", "B"), _runs(diff)),
        *_first(diff),
        "<h2>First of each kind</h2>",
        _table(("kind", "first difference"), firsts(diff)),
    ]
    cells: list[tuple[str, ...]]
    if diff.values:
        parts += ["<h2>Values that differ</h2>", _table(Row._fields, rows(diff))]
    if diff.operators:
        cells = [(o.graph, "\n".join(o.a), "\n".join(o.b)) for o in diff.operators]
        parts += ["<h2>Operators that differ</h2>", _table(("graph", "A", "B"), cells)]
    if diff.kernels:
        cells = [(k.graph, "\n".join(k.a), "\n".join(k.b)) for k in diff.kernels]
        parts += ["<h2>Kernels that differ</h2>", _table(("graph", "A", "B"), cells)]
    if diff.not_compared:
        parts += ["<h2>Not compared</h2>", _table(("what", "why"), [(s.what, s.reason) for s in diff.not_compared])]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'\">\n"
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>torchsan diff: {_text(diff.status)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>torchsan diff</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _runs(diff: Diff) -> list[tuple[str, str, str]]:
    a, b = diff.a, diff.b
    return [
        ("recording", a.path, b.path),
        ("command", " ".join(a.command), " ".join(b.command)),
        ("torch", a.torch, b.torch),
        ("started", a.started, b.started),
        ("compiled", f"{a.graphs} graphs, {a.kernels} kernels", f"{b.graphs} graphs, {b.kernels} kernels"),
        *((c.what, c.a, c.b) for c in diff.circumstances if c.what not in ("command", "torch")),
    ]


def _first(diff: Diff) -> list[str]:
    if diff.first is None:
        return []
    value = diff.first
    lines = [*value.text, *([apart(value.comparison)] if value.comparison is not None else [])]
    source = "\n".join(f"{s.file}:{s.line}\n    {s.code}" for s in value.source)
    return [f"<h2>First difference: {_text(where(value))}</h2>", f"<pre>{_lines(source)}</pre>", _list(lines)]


def _table(headings: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(h)}</th>' for h in headings)
    lines = "\n".join("<tr>" + "".join(f"<td>{_lines(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _text(text: str) -> str:
    return escape(clean(text))


def _lines(text: str) -> str:
    return "<br>".join(_text(line) for line in text.split("\n"))


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
