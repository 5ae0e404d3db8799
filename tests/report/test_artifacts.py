"""Artifacts of a compile as Markdown files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.html.recordings import hostile, ordinary
from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.report.artifacts import write_artifacts

PARTS = [
    "What it is",
    "What it is for",
    "What it is made of",
    "What it depends on, and what depends on it",
    "What it costs",
    "Is it safe?",
    "Related",
]


def test_every_artifact_has_a_page_with_the_same_parts_and_the_index_names_all(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    written = write_artifacts(Reader(ordinary(tmp_path / "run")), folder)
    pages = {file.name: file.read_text() for file in folder.iterdir()}
    index = pages.pop("index.md")
    assert len(pages) == written
    assert {"graph0-forward.wrapper.py.md", "graph0-forward.fx.py.md", "model.py.md"} < set(pages)
    for name, page in pages.items():
        assert f"]({name})" in index
        headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
        assert headings[: len(PARTS)] == PARTS
        for target in re.findall(r"\]\(([^)]+)\)", page):
            assert target == "index.md" or target in pages
    kernel = next(page for name, page in pages.items() if name.startswith("graph0-forward.cpp_fused"))
    assert re.search(r"sha256: `[0-9a-f]{64}`", kernel)
    assert "in `layers.0`" in kernel
    assert "values: " in kernel
    assert "```cpp\n" in kernel
    assert "F1: error: " in "".join(pages.values())


def test_it_writes_over_nothing(tmp_path: Path) -> None:
    recording = Reader(ordinary(tmp_path / "run"))
    with pytest.raises(UsageError, match="is no empty folder"):
        write_artifacts(recording, recording.path)


def test_what_a_hostile_recording_holds_stays_in_the_folder_and_is_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    write_artifacts(Reader(hostile(tmp_path / "run", long=100_000)), folder)
    outside = {tmp_path / "run", folder}
    assert {*tmp_path.iterdir()} == outside
    for page in folder.iterdir():
        text = re.sub(r"^(`{3,}).*?^\1$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert "<script" not in text.lower()


def test_the_graph_of_a_stage_and_a_cache_entry_say_who_made_them_and_what_they_came_from(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    write_artifacts(Reader(ordinary(tmp_path / "run")), folder)
    captured = (folder / "graph0-forward.1-capture.fx.py.md").read_text()
    assert "made by: `Dynamo: the graph that it read off your Python code`" in captured
    assert "- 2 nodes" in captured
    assert re.search(r"Depends on:\n\n- \[`\S*model.py`\]", captured)
    last = (folder / "graph0-forward.fx.py.md").read_text()
    assert "changed by `remove_noop_ops`" in last
    assert "Depends on:\n\n- [`graph0-forward.1-capture.fx.py`]" in last
    entry = (folder / "graph0-forward.cache.py.md").read_text()
    assert "- key: `fabc`" in entry
    assert "[`graph0-forward.wrapper.py`]" in entry
