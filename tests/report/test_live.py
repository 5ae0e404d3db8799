"""Findings that are shown while the program runs."""

from __future__ import annotations

import io
from pathlib import Path

from tests.samples import finding
from torchsan.options import Options
from torchsan.recording import Writer
from torchsan.records import Kind, Severity
from torchsan.records.suppression import Suppression
from torchsan.report.live import Shown


def test_a_finding_is_shown_with_its_call_step_and_time_and_what_follows_in_a_line(tmp_path: Path) -> None:
    suppressed = Suppression(kind=Kind.RACE, reason="known")
    writer = Writer.create(tmp_path / "run", command=["script.py"], options=Options(suppress=(suppressed,)))
    stream = io.StringIO()
    shown = Shown(writer.path, stream)
    for each in (
        finding(call=4, step=3, time=None),
        finding(Severity.WARNING, evidence={"follows": "F1"}),
        finding(Severity.NOTE),
        finding(kind=Kind.RACE),
    ):
        shown.show(writer.finding(each))
    writer.close()
    text = stream.getvalue()
    assert "F1: error: wrong-values\n" in text
    assert "when:    call 4 of graph 0, step 3, 0." in text
    assert "s after the start\n" in text
    assert "F2 follows from F1: warning: wrong-values: the kernel computes other values than eager" in text
    assert text.count("the kernel computes") == 2
    assert list(shown.findings) == ["F1", "F2"]
