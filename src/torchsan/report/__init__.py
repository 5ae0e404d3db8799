"""Shows what a recording says: on a terminal, as text and as JSON."""

from __future__ import annotations

from torchsan.report.findings import render_findings
from torchsan.report.verdict import Verdict, verdict

__all__ = ["Verdict", "render_findings", "verdict"]
