from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.recording import Program, Writer, finalize
from torchsan.records import Finding

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Record a run on a host, with findings."""

    def make(name: str, *findings: Finding, host: str = "node0") -> Path:
        folder = tmp_path / "runs" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        writer = Writer.create(folder, command=["train.py"])
        writer.graph(graph())
        for found in findings:
            writer.finding(found)
        writer.close()
        finalize(folder, Program(exit=0))
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"host": host}))
        return folder

    return make


@pytest.fixture
def runs(make_run: MakeRun, tmp_path: Path) -> Path:
    """Twelve runs on three hosts; those on one have an error, and one run elsewhere a note."""
    for n in range(12):
        found = [finding(message="odd \ud800 text")] if n % 3 == 0 else []
        make_run(f"day-{n // 6}/run-{n}", *found, host=f"node{n % 3}")
    return tmp_path / "runs"
