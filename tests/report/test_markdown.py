"""The report as Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.options import Options
from torchsan.recording import Reader, Writer
from torchsan.records.suppression import Suppression
from torchsan.report.markdown import MarkdownExporter, _as_cell, as_text


def rendered(folder: Path, *findings: object, options: Options | None = None) -> str:
    writer = Writer.create(folder, command=["train.py"], options=options or Options())
    writer.graph(graph())
    for f in findings:
        writer.finding(f)  # type: ignore[arg-type]
    writer.close()
    return MarkdownExporter().render(Reader(folder))


def test_the_verdict_a_table_and_the_findings(tmp_path: Path) -> None:
    text = rendered(tmp_path / "run", finding())
    assert text.startswith("### torchsan: findings: 1 error; ")
    assert "| F1 | error | wrong-values | model.py:12 | the kernel computes other values than eager |" in text
    assert "<summary>F1: wrong-values</summary>" in text
    assert "at model.py:12" in text


def test_what_follows_from_a_finding_stands_below_it(tmp_path: Path) -> None:
    text = rendered(tmp_path / "run", finding(), finding(buffer="buf9", evidence={"follows": "F1"}))
    assert "| F2 |" not in text
    assert "F2 follows from F1" in text


def test_what_is_suppressed_is_listed_with_its_reason(tmp_path: Path) -> None:
    known = Options(suppress=(Suppression(kernel="*", reason="reported upstream"),))
    text = rendered(tmp_path / "run", finding(), options=known)
    assert "- F1: wrong-values, suppressed: reported upstream: the kernel computes other values than eager" in text
    assert "| finding |" not in text


def test_no_table_without_findings(tmp_path: Path) -> None:
    assert "| finding |" not in rendered(tmp_path / "run")


def test_markup_in_a_recording_is_shown_as_it_is(tmp_path: Path) -> None:
    text = rendered(tmp_path / "run", finding(message="<script>|`x`|\n```\n</details>", kernel="````"))
    assert "| `<script>\\|'x'\\| ''' </details>` |" in text
    assert text.count("</details>") == 3  # One closes, one is code, and one stands inside a fence that is long enough.
    assert "`````text" in text
    assert as_text("a_b*[c](d)\x1b is") == "`a_b*[c](d)\\x1b` is"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain words, 1e-6 of 3 (or so): aten.add.Tensor", "plain words, 1e-6 of 3 (or so): aten.add.Tensor"),
        ("- item", "`-` item"),
        ("1. item", "`1.` item"),
        ("3) item", "`3)` item"),
        ("---", "`---`"),
        ("===", "`===`"),
        ("    indented", "indented"),
        ("see https://evil.example or www.evil.example now", "see `https://evil.example` or `www.evil.example` now"),
        ("ask @root, a@b.example", "ask `@root, a@b.example`"),
        ("it is #1 of ~~x~~ _it_ $x$", "it is `#1` of `~~x~~ _it_ $x$`"),
        ("a `b` c", "a `'b'` c"),
        ("", ""),
    ],
)
def test_what_could_be_markup_is_code(said: str, shown: str) -> None:
    assert as_text(said) == shown


def test_a_cell_does_not_end_early() -> None:
    assert _as_cell(as_text("a|b \\|")) == "`a\\|b \\ \\|`"
