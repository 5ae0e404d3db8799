"""What a job of GitHub Actions shows: annotations at the source lines, and a summary. Importing it imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TextIO

from torchsan.recording import Reader
from torchsan.records import Severity
from torchsan.report.findings import clean
from torchsan.report.markdown import MarkdownExporter
from torchsan.report.verdict import Status, counting, verdict

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def tell_github(recording: Reader, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Write an annotation for each finding to `stream`, and the report to the summary of the job, if it has one."""
    for line in workflow_commands(recording, environ.get("GITHUB_WORKSPACE", "")):
        stream.write(f"{line}\n")
    stream.flush()
    if summary := environ.get("GITHUB_STEP_SUMMARY"):
        with suppress(OSError), Path(summary).open("a", encoding="utf-8") as file:
            file.write(MarkdownExporter().render(recording))


def workflow_commands(recording: Reader, workspace: str = "") -> Iterator[str]:
    """Yield a workflow command for each finding, and one that says why the run is incomplete."""
    for finding in counting(recording):
        where = ""
        if finding.source:
            first = finding.source[0]
            path = PurePath(first.file)
            if workspace and path.is_relative_to(workspace):
                path = path.relative_to(workspace)
            where = f"file={_property(str(path))},line={first.line},"
        title = _property(f"torchsan {finding.id}: {finding.kind}")
        yield f"::{_COMMANDS[finding.severity]} {where}title={title}::{_data(finding.message)}"
    outcome = verdict(recording)
    if outcome.status is Status.INCOMPLETE:
        yield f"::warning title=torchsan%3A incomplete::{_data('; '.join(outcome.reasons))}"


def _data(text: str) -> str:
    """One line, so that nothing in a recording is read as another command."""
    return clean(" ".join(text.split())).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
