"""What a sweep says, in all forms, of results that nobody ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sweep.made_up import finding, result
from torchsan.errors import UsageError
from torchsan.sweep.report import SWEEP_EXPORTERS, Sweep, SweepJsonExporter, SweepPageExporter, sweep_lines
from torchsan.sweep.results import Outcome, Result
from torchsan.sweep.triage import finds_of, sorted_out


def sweep(*results: Result, baseline: frozenset[str] = frozenset(), **changes: Any) -> Sweep:
    finds = tuple(sorted_out(finds_of(results), baseline, "2.13.0"))
    fields: dict[str, Any] = {"command": ("torchsan", "sweep"), "torch": "2.13.0", "seconds": 60.0}
    return Sweep(results=results, finds=finds, **(fields | changes))


def test_the_status_is_that_of_what_is_new() -> None:
    wrong = result("wrong", finding("aten.not_known.default"))
    known = frozenset(find.fingerprint for find in finds_of([wrong]))
    assert sweep(wrong).exit == 1
    assert sweep(wrong, baseline=known).exit == 0
    assert sweep(result("clean")).exit == 0
    assert sweep(result("clean"), missing=3).exit == 4
    assert sweep(result("nothing", outcome=Outcome.INCOMPLETE), result("no", outcome=Outcome.INVALID)).exit == 4
    assert sweep().exit == 4
    assert sweep(result("dies", outcome=Outcome.CRASHED, signal=11)).exit == 1


def test_the_json_has_the_keys_of_a_finding_for_every_find() -> None:
    wrong, dies = result("wrong", finding()), result("dies", outcome=Outcome.CRASHED, signal=11, output="boom")
    report = json.loads(SweepJsonExporter().render(sweep(wrong, dies, result("clean"))))
    assert report["outcomes"] == {"clean": 1, "crashed": 1, "findings": 1}
    assert [p["name"] for p in report["programs"]] == ["wrong", "dies", "clean"]
    first, second = report["findings"]
    assert set(first) == set(second)
    assert {first["kind"], second["kind"]} == {"wrong-values", "crashed"}
    assert {first["programs"][0], second["programs"][0]} == {"wrong", "dies"}


def test_a_page_shows_the_program_and_runs_nothing(tmp_path: Path) -> None:
    wrong = result("<b>wrong</b>", finding("aten.not_known.default"), text="y = '<script>alert(1)</script>'\n")
    page = SweepPageExporter()
    for name in ("page.html", "page.md"):
        page.write(sweep(wrong), str(tmp_path / name), None)
    html, markdown = ((tmp_path / name).read_text() for name in ("page.html", "page.md"))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "```python\ny = '<script>" in markdown
    with pytest.raises(UsageError):
        page.check(str(tmp_path / "page.pdf"))


def test_quiet_lines_are_what_is_new_and_the_verdict() -> None:
    wrong = result("wrong", finding("aten.not_known.default"))
    known = frozenset(find.fingerprint for find in finds_of([wrong]))
    lines = [line.text for line in sweep_lines(sweep(wrong, baseline=known), quiet=True)]
    assert lines == ["torchsan: nothing new: 1 program: 1 with findings; errors: 1 in the baseline"]
    text = "\n".join(line.text for line in sweep_lines(sweep(wrong)))
    assert "F1: error: wrong-values (new)" in text
    assert [e.name for e in SWEEP_EXPORTERS] == ["json", "report"]


def test_why_programs_were_not_judged_is_said_once() -> None:
    invalid = [result(str(n), outcome=Outcome.INVALID, output="Traceback\nNameError: x\n") for n in range(3)]
    nothing = result("nothing", outcome=Outcome.INCOMPLETE, reasons=("nothing was compiled",))
    text = "\n".join(line.text for line in sweep_lines(sweep(*invalid, nothing)))
    assert "not judged: 3 programs, such as 0: NameError: x" in text
    assert "not judged: 1 program, such as nothing: nothing was compiled" in text
