"""The report as a web page: one file that works offline and can be attached to a bug report."""

from torchsan.report.html.page import render_html
from torchsan.report.html.write import check_html_target, write_html

__all__ = ["check_html_target", "render_html", "write_html"]
