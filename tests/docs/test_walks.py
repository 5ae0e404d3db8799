"""The walks of CONTRIBUTING.md work: each is followed, block by block, in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, blocks, run_commands

_PARTS = ["src", "tests", "docs", "README.md", "CHANGELOG.md", "pyproject.toml"]
_FILE = re.compile(r"^`(?P<path>[^`\n]+)`\n\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
_NEXT_PYTORCH = """
# What PyTorch would be like if it renamed a private function.
import importlib.metadata

def version(name, real=importlib.metadata.version):
    return "2.16.0" if name == "torch" else real(name)

importlib.metadata.version = version
import torch._inductor.compile_fx
from torch._inductor import decomposition
decomposition.decomposition_table = decomposition.select_decomp_table
del decomposition.select_decomp_table
"""


@dataclass(frozen=True)
class Step:
    """One file of a walk: the whole of it, or changes to it."""

    path: str
    language: str
    text: str

    def apply(self, root: Path) -> None:
        file = root / self.path
        if self.language != "diff":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.text, encoding="utf-8")
            return
        changed = file.read_text(encoding="utf-8")
        for hunk in self.text.split("@@\n"):
            old, new = (_side(hunk, sign) for sign in "-+")
            assert changed.count(old) == 1, f"{self.path} has {changed.count(old)} times:\n{old}"
            changed = changed.replace(old, new)
        file.write_text(changed, encoding="utf-8")


def _side(hunk: str, sign: str) -> str:
    """The lines of a hunk before (`-`) or after (`+`) the change; the last may be the beginning of a line."""
    return "\n".join(line[1:] for line in hunk.splitlines() if line[:1] in (" ", sign))


def section(heading: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, heading
    return found[1]


def steps(text: str) -> list[Step]:
    return [Step(m["path"], m["language"], m["text"]) for m in _FILE.finditer(text)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what a walk reads and changes."""
    root = tmp_path / "copy"
    root.mkdir()
    for part in _PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        else:
            shutil.copy(ROOT / part, root / part)
    return root


def environment(root: Path, *first: Path) -> dict[str, str]:
    """That of a command which uses the copy's own torchsan."""
    path = os.pathsep.join(map(str, [*first, root / "src"]))
    return os.environ | {"PYTHONPATH": path, "TORCHSAN_OPTIONS": "", "COLUMNS": "200"}


def run_all(text: str, root: Path, environ: dict[str, str]) -> None:
    """Run the commands of a text in the copy."""
    for block in blocks(text):
        if block.language == "console":
            run_commands(block, "CONTRIBUTING.md", root, environ)


def test_every_block_of_a_walk_applies(copy: Path) -> None:
    for heading in ("Add a check", "Add an exporter"):
        found = steps(section(heading))
        assert len(found) > 4
        for step in found:
            step.apply(copy)


@pytest.mark.slow
def test_the_walk_to_a_new_check(copy: Path) -> None:
    text = section("Add a check")
    for step in steps(text):
        step.apply(copy)
    run_all(text, copy, environment(copy))


def test_the_walk_to_a_new_exporter(copy: Path) -> None:
    text = section("Add an exporter")
    for step in steps(text):
        step.apply(copy)
    run_all(text, copy, environment(copy))


@pytest.mark.slow
def test_the_walk_to_a_new_pytorch(copy: Path, tmp_path: Path) -> None:
    made_up = tmp_path / "next"
    made_up.mkdir()
    (made_up / "sitecustomize.py").write_text(_NEXT_PYTORCH, encoding="utf-8")
    environ = environment(copy, made_up)
    text = section("Support a new PyTorch")
    assert "has no torch._inductor.decomposition.select_decomp_table" in doctor(environ)
    for step in steps(text):
        step.apply(copy)
    after = doctor(environ)
    assert "does not work here" not in after
    assert "tested with" not in after
    run_all(text, copy, environ)


def doctor(environ: dict[str, str]) -> str:
    command = [sys.executable, "-m", "torchsan", "doctor"]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=120).stdout


def test_a_change_has_one_place(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\nthree\n")
    Step("a.py", "diff", " one\n+more\n@@\n-three\n+four\n").apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "one\nmore\ntwo\nfour\n"
    with pytest.raises(AssertionError, match="0 times"):
        Step("a.py", "diff", "-five\n").apply(tmp_path)
