"""A recording as rows."""

from __future__ import annotations

from pathlib import Path

from tests.fleet.conftest import MakeRun
from tests.samples import finding
from torchsan.fleet.rows import COLUMNS, rows_of
from torchsan.records import Severity
from torchsan.records.finding import fingerprint


def test_a_run_its_findings_and_its_kernels(make_run: MakeRun) -> None:
    rows = rows_of(str(make_run("run", finding(), finding(Severity.NOTE, source=(), graph=None, stage=None))))
    (run,) = rows["runs"]
    assert (run["status"], run["exit"], run["errors"], run["notes"], run["kernels"]) == ("findings", 1, 1, 1, 2)
    error, note = rows["findings"]
    assert (error["fingerprint"], error["file"], error["line"]) == (fingerprint(finding()), "model.py", 12)
    assert (note["file"], note["graph"], note["stage"]) == (None, None, None)
    assert [row["kernel"] for row in rows["kernels"]] == ["cpp_fused_relu_0", "cpp_fused_relu_1"]
    for name, many in rows.items():
        assert all(set(row) <= set(COLUMNS[name]) for row in many)


def test_what_cannot_be_read_is_a_run_with_the_reason(tmp_path: Path) -> None:
    (run,) = rows_of(str(tmp_path / "nothing"))["runs"]
    assert (run["status"], run["exit"]) == ("incomplete", 4)
    assert "no-recording" in run["reasons"][0]
