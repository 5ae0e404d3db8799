"""Every line of docs/found-bugs.md about fake kernels shows what it says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from torchsan.calls import crossref
from torchsan.records import Severity

_TEXT = (Path(__file__).parents[2] / "docs/found-bugs.md").read_text(encoding="utf-8")
_SNIPPETS = re.findall(r"^```python\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)
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
    exec(_SNIPPETS[0], {})  # of our own documentation
    off = float(capsys.readouterr().out.removeprefix("off by"))
    assert off > 0.1 or not torch.__version__.startswith("2.13")


@pytest.mark.parametrize("name", ["star_range", "in_range", "yield_from", "given_up"])
def test_python_that_is_compiled_means_something_else(name: str) -> None:
    names: dict[str, Any] = {}
    exec(_SNIPPETS[1], names)  # of our own documentation
    function, x = names[name], torch.ones(2)
    again: Any = torch.compile(function, backend="eager")
    by_itself, compiled = function(x), again(x)
    torch.compiler.reset()
    kinds = [v.dtype if isinstance(v, torch.Tensor) else v for v in (by_itself, compiled)]
    assert str((by_itself, kinds[0])) != str((compiled, kinds[1])) or not torch.__version__.startswith("2.13")


def test_gelu_of_what_is_large_is_wrong_eagerly() -> None:
    large = torch.tensor([float("inf"), 3e38])
    assert torch.equal(torch.nn.functional.gelu(large.double()), large.double())
    assert not torch.equal(torch.nn.functional.gelu(large), large) or not torch.__version__.startswith("2.13")
