"""Pages without a model: text in the style of the report, escaped, with no script but one that filters tables."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from torchsan.records import Coverage, Finding
from torchsan.report.findings import clean, count, finding_lines, session_text, skipped_by_reason, visible

_LONGEST = 200_000
_FILTER = """\
for (const input of document.querySelectorAll("input[type=search]")) {
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const row of input.closest("section").querySelectorAll("tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });
}
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
"""
_MANY = 12
"""Rows from which on a table has a field to filter it."""


def static(name: str) -> str:
    """Return one of the files of the page."""
    return resources.files("torchsan.report.html").joinpath("static", name).read_text(encoding="utf-8").strip()


def digest(text: str) -> str:
    """Return the hash of a script or style by which a policy allows it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def text(value: str, limit: int = 2000) -> str:
    """Return a text, of one line, as HTML."""
    return escape(clean(value, limit))


def lines(value: str) -> str:
    """Return a text as HTML, line by line; a long name may be broken where a person would."""
    shown = "<br>".join(text(line) for line in value.split("\n"))
    return shown.replace("_", "_<wbr>").replace("/", "/<wbr>") if "&" not in shown and "<" not in shown else shown


def code(value: str) -> str:
    """Return a text of many lines, such as source, as HTML."""
    return f"<pre>{escape(visible(value[:_LONGEST]))}</pre>"


def items(values: Iterable[str]) -> str:
    """Return texts as a list."""
    shown = "".join(f"<li>{lines(value)}</li>" for value in values)
    return f"<ul>{shown}</ul>" if shown else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return texts as a table, which can be filtered if it is long, and is a list of cards on a narrow screen."""
    body = [
        "<tr>"
        + "".join(f'<td data-name="{text(name)}">{lines(cell)}</td>' for name, cell in zip(headings, row, strict=True))
        + "</tr>"
        for row in rows
    ]
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in headings)
    field = '<input type="search" placeholder="Filter" aria-label="Filter">' if len(body) >= _MANY else ""
    all_rows = "\n".join(body)
    return (
        f'{field}<div class="scroll"><table class="grid plain"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{all_rows}\n</tbody></table></div>"
    )


def section(title: str, *content: str) -> str:
    """Return a part of a page; `content` is HTML."""
    shown = "\n".join(filter(None, content))
    return f'<section class="card wide"><h2>{text(title)}</h2>\n{shown}\n</section>'


def badge(word: str, kind: str) -> str:
    """Return a word in the colour of a `kind`: error, warning, note or right."""
    return f'<span class="badge {escape(kind)}">{text(word)}</span>'


def finding(value: Finding, consequences: Sequence[Finding] = ()) -> str:
    """Return a finding: its first line, and below that what the terminal shows."""
    first, *rest = (line.text for line in finding_lines(value, consequences=consequences))
    kind, _, words = first.partition(": ")
    head = f"{badge(kind, value.severity.value)} <b>{text(words)}</b>"
    below = "\n".join(line.removeprefix("    ") for line in rest)
    return f'<div class="finding"><p>{head}</p>{code(below)}</div>'


def fragment(findings: Sequence[Finding], coverage: Coverage) -> str:
    """Return findings, and what was looked at, for a page that has a style of its own, such as a notebook."""
    left_out = skipped_by_reason(coverage)
    skipped = [f"{count(len(what), 'time')}: {reason}" for reason, what in left_out]
    more = f"<details><summary>not checked: {count(len(skipped), 'reason')}</summary>{items(skipped)}</details>"
    shown = "".join(each._repr_html_() for each in findings)
    return f"<p><b>torchsan</b>: {text(session_text(findings, coverage))}</p>{shown}{more if skipped else ''}"


def page(title: str, status: str, *sections: str) -> str:
    """Return a page that needs nothing else; `status` and `sections` are HTML."""
    style = static("report.css")
    shown = "\n".join(filter(None, sections))
    policy = f"default-src 'none'; style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(_FILTER)}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><p class="brand"><b>{text(title)}</b> {status}</p>'
        '<div class="tools"><button id="theme" type="button">☾ ☀</button></div></header>\n'
        f'<main><div class="cards">\n{shown}\n</div></main>\n'
        f"<script>{_FILTER}</script>\n</body>\n</html>\n"
    )
