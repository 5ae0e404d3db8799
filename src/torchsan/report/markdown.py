"""The report as Markdown, for a pull request, an issue or the summary of a job. Importing it imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from torchsan.recording import Reader
from torchsan.records import Finding
from torchsan.report.exporter import Exporter
from torchsan.report.findings import clean, finding_lines, severities_text, shown_file, with_consequences
from torchsan.report.terminal import verdict_text
from torchsan.report.verdict import counting, suppressed_by, verdict

_FINDINGS = 50
"""How many findings are written out; a summary has a limit of its own."""


class MarkdownExporter(Exporter[Reader]):
    """Writes the report as Markdown."""

    name = "markdown"
    help = "write the report as Markdown to FILE"

    def render(self, subject: Reader) -> str:
        return "".join(f"{line}\n" for line in _lines(subject))


def _lines(recording: Reader) -> Iterator[str]:
    outcome = verdict(recording)
    findings = counting(recording)
    yield f"### torchsan: {as_text(verdict_text(recording, outcome))}"
    yield ""
    yield f"{as_code(' '.join(recording.manifest.command))}, PyTorch {as_text(recording.manifest.torch)}"
    if outcome.reasons:
        yield ""
        yield from (f"- {as_text(reason)}" for reason in outcome.reasons)
    suppressed = [(f, by) for f in recording.findings() if (by := suppressed_by(recording, f)) is not None]
    if suppressed:
        yield ""
        for finding, by in suppressed[:_FINDINGS]:
            yield f"- {finding.id}: {finding.kind}, suppressed: {as_text(by.reason, 300)}: {_what(finding)}"
    if not findings:
        return
    yield ""
    yield "| finding | severity | kind | where | what |"
    yield "| --- | --- | --- | --- | --- |"
    grouped = with_consequences(findings)
    for finding, _ in grouped[:_FINDINGS]:
        cells = (finding.id, finding.severity, finding.kind, _where(finding))
        yield f"| {' | '.join(_as_cell(as_text(cell, 300)) for cell in cells)} | {_as_cell(_what(finding))} |"
    for finding, consequences in grouped[:_FINDINGS]:
        text = "\n".join(line.text for line in finding_lines(finding, consequences=consequences))
        yield f"\n<details><summary>{finding.id}: {finding.kind}</summary>\n"
        yield f"{fenced('text', text)}\n\n</details>"
    if len(grouped) > _FINDINGS:
        yield f"\n… and {len(grouped) - _FINDINGS} more ({severities_text(findings)} in all)."


def _what(finding: Finding) -> str:
    return as_text(" ".join(finding.message.split()), 300)


def _where(finding: Finding) -> str:
    if finding.source:
        return f"{shown_file(finding.source[0].file)}:{finding.source[0].line}"
    return finding.kernel or finding.pass_ or finding.stage or ""


_MARKUP = re.compile(r"[\\`*_{}\[\]<>|#~@&$^]|://|www\.", re.IGNORECASE)
"""What Markdown, or a site that shows it, could take for markup, a link or a mention."""
_MARKER = re.compile(r"\W+|\d+[.)]\W*")
"""A first word that could begin a list, a rule or a heading."""


def as_text(text: object, limit: int = 2000) -> str:
    """Return text from a recording so that Markdown shows it as it is, in one line: what could be markup is code.

    Escapes would not do: sites look for links and mentions in what was escaped as well.
    """
    words = enumerate(clean(text, limit).split())
    parts = groupby(words, lambda w: bool(_MARKUP.search(w[1]) or (w[0] == 0 and _MARKER.fullmatch(w[1]))))
    shown = ((code, " ".join(word for _, word in group)) for code, group in parts)
    return " ".join(as_code(part, limit) if code else part for code, part in shown)


def as_code(text: object, limit: int = 2000) -> str:
    """Return a name or a value of a recording as code in a line."""
    return "`" + (clean(text, limit).replace("`", "'") or " ") + "`"


def fenced(language: str, text: str) -> str:
    """Return a block of code that nothing in the text ends."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _as_cell(text: str) -> str:
    """Keep text from ending the cell of a table that it stands in; there, code is not taken as it is."""
    return re.sub(r"(\\?)\|", lambda found: f"{found[1] and found[1] + ' '}\\|", text)
