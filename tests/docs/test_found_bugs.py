"""Every line of docs/found-bugs.md about fake kernels shows what it says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from torchsan.calls import crossref
from torchsan.records import Severity

_TEXT = (Path(__file__).parents[2] / "docs/found-bugs.md").read_text(encoding="utf-8")
_STRIDES = re.findall(r"^```python\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)
_LINES = re.findall(r"^\| (.*) \| `([^`]*)` \|$", _TEXT.partition("## Fake kernels")[2], re.MULTILINE)


def test_there_are_bugs() -> None:
    assert len(_LINES) > 5


@pytest.mark.parametrize(("what", "line"), _LINES)
def test_a_reproducer_shows_its_bug(what: str, line: str) -> None:
    operator = re.findall(r"`(\w+)`", what)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with crossref() as run:
            eval(line, {"torch": torch})  # noqa: S307  # a line of our own documentation
    assert any(f".{operator}." in f.message for f in run.findings), run.findings
    assert all(f.severity is Severity.WARNING for f in run.findings)


def test_the_attention_that_depends_on_strides_does(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = _STRIDES
    exec(snippet, {})  # of our own documentation
    off = float(capsys.readouterr().out.removeprefix("off by"))
    assert off > 0.1 or not torch.__version__.startswith("2.13")
