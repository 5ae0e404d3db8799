"""Every line of docs/found-bugs.md about fake kernels shows what it says, with the releases that it says."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from tools import found_bugs
from tools.torch_env import MATRIX

from torchsan.calls import crossref
from torchsan.records import Severity

_TEXT = found_bugs.PAGE.read_text(encoding="utf-8")
_STRIDES = re.findall(r"^```python\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)
_LINES = re.findall(r"^\| (.*?) \| .*`([^`]*)` \|$", _TEXT.partition("## Fake kernels")[2], re.MULTILINE)
_RELEASE = ".".join(torch.__version__.split(".")[:2])
_SHOWN = found_bugs.shown_in(_TEXT, _RELEASE) if _RELEASE in _TEXT else {}


def test_there_are_bugs_and_a_column_for_each_release() -> None:
    assert len(_LINES) > 5
    for version in MATRIX:
        release = version.rpartition(".")[0]
        assert set(found_bugs.shown_in(_TEXT, release)) == set(found_bugs.reproducers(_TEXT))


@pytest.mark.skipif(not _SHOWN, reason="the page says nothing of this PyTorch")
@pytest.mark.parametrize(("what", "line"), _LINES)
def test_a_reproducer_shows_its_bug(what: str, line: str) -> None:
    operator = re.findall(r"`(\w+)`", what)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with crossref() as run:
            eval(line, {"torch": torch})  # noqa: S307  # a line of our own documentation
    assert any(f".{operator}." in f.message for f in run.findings) is _SHOWN[line], run.findings
    assert all(f.severity is Severity.WARNING for f in run.findings)


def test_the_attention_that_depends_on_strides_does(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = _STRIDES
    exec(snippet, {})  # of our own documentation
    off = float(capsys.readouterr().out.removeprefix("off by"))
    assert off > 0.1 or not torch.__version__.startswith("2.13")


def test_columns_are_written_over_those_that_are_there() -> None:
    page = "# Bugs\n\n| what | reproducer |\n| --- | --- |\n| `a` of two words | `a(1)` |\n| b | `b()` |\n"
    first = found_bugs.with_columns(page, {"2.12": {"a(1)": True, "b()": False}})
    assert found_bugs.reproducers(first) == {"a(1)": "a", "b()": None}
    again = found_bugs.with_columns(first, {"2.12": {"a(1)": True, "b()": True}, "2.13": {"a(1)": False, "b()": True}})
    assert again == (
        "# Bugs\n\n| what | 2.12 | 2.13 | reproducer |\n| --- | --- | --- | --- |\n"
        "| `a` of two words | yes | – | `a(1)` |\n| b | yes | yes | `b()` |\n"
    )
    assert found_bugs.shown_in(again, "2.13") == {"a(1)": False, "b()": True}
