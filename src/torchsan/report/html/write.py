"""Writes the page to a file."""

from __future__ import annotations

from torchsan.recording import Reader
from torchsan.report.html.page import render_html
from torchsan.report.targets import check_target, write_target

__all__ = ["check_html_target", "write_html"]


def check_html_target(target: str) -> None:
    """Raise UsageError if a page cannot be written there, before a long run finds out; `-` is standard output."""
    check_target("--html", target)


def write_html(recording: Reader, target: str) -> None:
    """Write the page to a file, at once or not at all, or to standard output for `-`."""
    write_target("--html", target, render_html(recording))
