"""The report as Markdown."""

from __future__ import annotations

from pathlib import Path

from tests.samples import finding, graph
from torchsan.recording import Reader, Writer
from torchsan.report.markdown import MarkdownExporter, escape


def rendered(folder: Path, *findings: object) -> str:
    writer = Writer.create(folder, command=["train.py"])
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


def test_no_table_without_findings(tmp_path: Path) -> None:
    assert "| finding |" not in rendered(tmp_path / "run")


def test_markup_in_a_recording_is_shown_as_it_is(tmp_path: Path) -> None:
    text = rendered(tmp_path / "run", finding(message="<script>|`x`|\n```\n</details>", kernel="````"))
    assert "&lt;script&gt;\\|\\`x\\`\\|" in text
    assert text.count("</details>") == 2  # One closes, and one stands inside a fence that is longer than what it holds.
    assert "`````text" in text
    assert escape("a_b*[c](d)\x1b") == "a\\_b\\*\\[c\\](d)\\x1b".replace("\\x1b", "\\\\x1b")
