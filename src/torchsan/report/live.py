"""Findings on the terminal when they are made, while the program goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from torchsan.recording.folder import read_manifest
from torchsan.records import Finding, Forecast, Severity
from torchsan.records.suppression import Suppressions
from torchsan.report.cost import forecast_text
from torchsan.report.findings import Line, began_at, clean, finding_line, finding_lines
from torchsan.report.printing import print_lines


class Shown:
    """What was shown of a run before it ended."""

    def __init__(self, folder: Path, stream: TextIO) -> None:
        """Show what is recorded in `folder`, on `stream`."""
        self._folder = folder
        self._stream = stream
        self.findings: dict[str, Finding] = {}
        """By their ids."""

    def show(self, finding: Finding) -> None:
        """Show a finding, unless it is a note or suppressed. Raise OSError or RecordingError."""
        manifest = read_manifest(self._folder)
        known = Suppressions(manifest.options.suppress, manifest.started[:10], [finding])
        if finding.severity is Severity.NOTE or known.of(finding) is not None:
            return
        if finding.evidence.get("follows") in self.findings:
            lines = [finding_line(finding)]
        else:
            lines = [Line(""), *finding_lines(finding, began=began_at(manifest))]
        print_lines(lines, self._stream)
        self.findings[finding.id] = finding

    def foretell(self, forecast: Forecast) -> None:
        """Say how long checking will take. Raise OSError."""
        print_lines([Line(f"torchsan: {clean(forecast_text(forecast))}", "dim")], self._stream)
