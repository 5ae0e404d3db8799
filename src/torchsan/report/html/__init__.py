"""The report as a web page: one file that works offline and can be attached to a bug report."""

from __future__ import annotations

from torchsan.report.html.page import check_html_target, render_html, write_html

__all__ = ["check_html_target", "render_html", "write_html"]
