"""Shows what a recording says: on a terminal, as text, and as files through exporters."""

from __future__ import annotations

from torchsan.recording import Reader
from torchsan.report.exporter import Exporter, Exports, add_export_flags
from torchsan.report.findings import render_findings
from torchsan.report.html import HtmlExporter
from torchsan.report.json_report import JsonExporter
from torchsan.report.perfetto import PerfettoExporter
from torchsan.report.verdict import Verdict, verdict

__all__ = ["EXPORTERS", "Exporter", "Exports", "Verdict", "add_export_flags", "render_findings", "verdict"]

EXPORTERS: tuple[Exporter[Reader], ...] = (JsonExporter(), HtmlExporter(), PerfettoExporter())
"""The exporters of a recording, in the order of their flags. Each also has its option in `torchsan.options`."""
