"""A run in CI: its exit status, annotations, and a baseline of what is known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CASE = str(Path(__file__).parents[1] / "cases" / "uint8_amin.py")


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchsan", "run", "--check", "values", *words, CASE]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=240, check=False)


def test_what_is_known_does_not_fail_the_job_again(tmp_path: Path) -> None:
    first = run("--exit-code", "86", "--github", "--json", "known.json", folder=tmp_path)
    assert first.returncode == 86, first.stderr
    report = json.loads((tmp_path / "known.json").read_text())
    assert report["status"] == "findings"
    annotation = next(line for line in first.stdout.splitlines() if line.startswith("::"))
    assert annotation.startswith("::error file=")
    assert "title=torchsan F1%3A wrong-values::" in annotation

    again = run("--exit-code", "86", "--baseline", "known.json", "--json", "again.json", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    report = json.loads((tmp_path / "again.json").read_text())
    assert report["status"] == "clean"
    assert {f["suppressed"] for f in report["findings"]} == {"in the baseline"}
