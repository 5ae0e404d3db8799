"""The report as a web page: one file that works offline and can be attached to a bug report."""

from __future__ import annotations

from torchsan.recording import Reader
from torchsan.report.exporter import Exporter

__all__ = ["HtmlExporter"]


class HtmlExporter(Exporter[Reader]):
    """Writes the page of a recording."""

    name = "html"
    help = "write the report as a web page to FILE"

    def render(self, subject: Reader) -> str:
        # Here, because a command adds the flag whether or not it is used.
        from torchsan.report.html.page import render_html

        return render_html(subject)
