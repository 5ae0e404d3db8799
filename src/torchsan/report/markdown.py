"""The report as Markdown, for a pull request, an issue or the summary of a job. Importing it imports no torch."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from torchsan.recording import Reader
from torchsan.records import Finding
from torchsan.report.exporter import Exporter
from torchsan.report.findings import clean, finding_lines, severities_text
from torchsan.report.terminal import verdict_text
from torchsan.report.verdict import counting, verdict

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
    yield f"### torchsan: {escape(verdict_text(recording, outcome))}"
    yield ""
    yield f"`{_code(' '.join(recording.manifest.command))}`, PyTorch {escape(recording.manifest.torch)}"
    if outcome.reasons:
        yield ""
        yield from (f"- {escape(reason)}" for reason in outcome.reasons)
    if not findings:
        return
    yield ""
    yield "| finding | severity | kind | where | what |"
    yield "| --- | --- | --- | --- | --- |"
    for finding in findings[:_FINDINGS]:
        cells = (finding.id, finding.severity, finding.kind, _where(finding), " ".join(finding.message.split()))
        yield f"| {' | '.join(escape(cell, 300) for cell in cells)} |"
    for finding in findings[:_FINDINGS]:
        text = "\n".join(line.text for line in finding_lines(finding))
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        yield f"\n<details><summary>{escape(finding.id)}: {escape(finding.kind)}</summary>\n"
        yield f"{fence}text\n{text}\n{fence}\n\n</details>"
    if len(findings) > _FINDINGS:
        yield f"\n… and {len(findings) - _FINDINGS} more ({severities_text(findings)} in all)."


def _where(finding: Finding) -> str:
    if finding.source:
        return f"{finding.source[0].file}:{finding.source[0].line}"
    return finding.kernel or finding.pass_ or finding.stage or ""


def _code(text: str) -> str:
    return clean(text).replace("`", "'")


def escape(text: object, limit: int = 2000) -> str:
    """Return text from a recording so that Markdown and HTML show it as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", html.escape(clean(text, limit), quote=False))
