"""Findings as SARIF, by the classes that a public package made from its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sarif_pydantic import Sarif  # type: ignore[import-untyped]  # It has no marker for types.

from tests.samples import finding
from torchsan.options import Options
from torchsan.recording import Reader, Writer
from torchsan.records import Severity, SourceLine
from torchsan.records.finding import fingerprint
from torchsan.records.suppression import Suppression
from torchsan.report.sarif import SarifExporter


def rendered(folder: Path, *findings: Any, suppress: tuple[Suppression, ...] = ()) -> dict[str, Any]:
    writer = Writer.create(folder, command=["train.py", "--steps", "2"], options=Options(suppress=suppress))
    for f in findings:
        writer.finding(f)
    writer.close()
    text = SarifExporter().render(Reader(folder))
    Sarif.model_validate_json(text)
    run: dict[str, Any] = json.loads(text)["runs"][0]
    return run


def test_a_finding_has_a_rule_a_level_and_a_place(tmp_path: Path) -> None:
    run = rendered(tmp_path / "run", finding(), finding(Severity.NOTE, kernel="other"))
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["wrong-values"]
    error, note = run["results"]
    assert (error["ruleId"], error["level"], note["level"]) == ("wrong-values", "error", "note")
    place = error["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "model.py"
    assert place["region"] == {"startLine": 12, "snippet": {"text": "x = self.act(x)"}}
    assert error["properties"]["kernel"] == "cpp_fused_relu_0"


def test_a_finding_is_recognised_in_another_run(tmp_path: Path) -> None:
    moved = finding(
        kernel="cpp_fused_relu_7", source=(SourceLine(file="/x/model.py", line=99, code=" x = self.act(x)"),)
    )
    run = rendered(tmp_path / "run", finding(), moved, finding(kernel="cpp_fused_tanh_0"))
    one, same, other = (result["partialFingerprints"]["torchsan/v1"] for result in run["results"])
    assert one == same == fingerprint(finding())
    assert other != one


def test_lines_below_the_folder_of_the_program_are_written_from_there(tmp_path: Path) -> None:
    lines = tuple(SourceLine(file=f, line=n, code="") for n, f in enumerate([str(Path.cwd() / "a b.py"), "/else/c.py"]))
    result = rendered(tmp_path / "run", finding(source=lines))["results"][0]
    first, second = (result[name][0]["physicalLocation"] for name in ("locations", "relatedLocations"))
    assert first["artifactLocation"] == {"uri": "a%20b.py", "uriBaseId": "SRCROOT"}
    assert first["region"]["startLine"] == 1  # The schema has no line 0.
    assert second["artifactLocation"] == {"uri": "file:///else/c.py"}


def test_a_line_that_ran_in_several_modules_is_one_place(tmp_path: Path) -> None:
    lines = tuple(SourceLine(file="model.py", line=n, code="", module=m) for n, m in [(3, "a"), (3, "b"), (4, "a")])
    result = rendered(tmp_path / "run", finding(source=lines))["results"][0]
    places = [p["physicalLocation"]["region"]["startLine"] for p in result["locations"] + result["relatedLocations"]]
    assert places == [3, 4]


def test_a_finding_without_a_line_stands_at_the_script(tmp_path: Path) -> None:
    result = rendered(tmp_path / "run", finding(source=()))["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


def test_a_suppressed_finding_says_why(tmp_path: Path) -> None:
    run = rendered(tmp_path / "run", finding(), suppress=(Suppression(kernel="cpp_*", reason="known"),))
    assert run["results"][0]["suppressions"] == [{"kind": "external", "justification": "known"}]


def test_a_run_without_findings_is_a_log_too(tmp_path: Path) -> None:
    run = rendered(tmp_path / "run")
    assert run["results"] == []
    assert "nothing was compiled" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_what_a_recording_says_cannot_be_seen_as_something_else(tmp_path: Path) -> None:
    result = rendered(tmp_path / "run", finding(message="a\x1b[31m\u202eb"))["results"][0]
    assert result["message"]["text"] == "a\\x1b[31m\\u202eb"
