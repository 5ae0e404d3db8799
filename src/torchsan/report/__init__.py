"""Shows what a recording says: on a terminal, as text, and as files through exporters."""

from __future__ import annotations

from torchsan.recording import Reader
from torchsan.report.exporter import Exporter, Exports, add_export_flags
from torchsan.report.findings import render_findings
from torchsan.report.html import HtmlExporter
from torchsan.report.json_report import JsonExporter
from torchsan.report.junit import JunitExporter
from torchsan.report.markdown import MarkdownExporter
from torchsan.report.perfetto import PerfettoExporter
from torchsan.report.sarif import SarifExporter
from torchsan.report.verdict import Status, Verdict, verdict

__all__ = ["EXPORTERS", "Exporter", "Exports", "Status", "Verdict", "add_export_flags", "render_findings", "verdict"]

EXPORTERS: tuple[Exporter[Reader], ...] = (
    JsonExporter(),
    HtmlExporter(),
    SarifExporter(),
    MarkdownExporter(),
    JunitExporter(),
    PerfettoExporter(),
)
"""The exporters of a recording, in the order of their flags. Each also has its option in `torchsan.options`."""
