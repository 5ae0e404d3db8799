"""Every reproducer of docs/found-bugs.md shows its bug with the releases that the page says, and with no others."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tools import found_bugs
from tools.torch_env import MATRIX, pinned

from torchsan.calls import crossref
from torchsan.records import Severity

_PAGE = found_bugs.PAGE.read_text(encoding="utf-8")
_SHOWN = found_bugs.shown(_PAGE).get(found_bugs.release(torch.__version__), {})
_OF_FAKES = re.findall(r"^\| `(\w+)` .* \| `([^`]*)` \|$", _PAGE.partition("## Fake kernels")[2], re.MULTILINE)


def said(code: str) -> bool:
    """What the page says of a reproducer with this PyTorch; without an answer there is nothing to compare."""
    if code not in _SHOWN:
        pytest.skip("the page has no answer for this PyTorch")
    return _SHOWN[code]


def test_the_page_has_a_column_of_every_release_and_all_answers_of_the_one_that_is_pinned() -> None:
    assert len(_OF_FAKES) > 5
    says = found_bugs.shown(_PAGE)
    assert list(says) == [found_bugs.release(version) for version in MATRIX]
    assert says[found_bugs.release(pinned())].keys() == found_bugs.reproducers(_PAGE).keys()


@pytest.mark.parametrize(("operator", "line"), _OF_FAKES)
def test_a_fake_kernel_is_reported_where_the_page_says_so(operator: str, line: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with crossref() as run:
            eval(line, {"torch": torch})  # noqa: S307  # a line of our own documentation
    assert any(f".{operator}." in f.message for f in run.findings) is said(line), run.findings
    assert all(f.severity is Severity.WARNING for f in run.findings)


@pytest.mark.parametrize("name", ["star_range", "in_range", "yield_from", "given_up"])
def test_python_that_is_compiled_means_something_else(name: str) -> None:
    expected = said(name)
    names: dict[str, Any] = {}
    exec(found_bugs.program(name, _PAGE).rpartition("\n\n")[0], names)  # of our own documentation
    function, x = names[name]._torchdynamo_orig_callable, torch.ones(2)
    again: Any = torch.compile(function, backend="eager")
    by_itself, compiled = function(x), again(x)
    torch.compiler.reset()
    kinds = [v.dtype if isinstance(v, torch.Tensor) else v for v in (by_itself, compiled)]
    assert (str((by_itself, kinds[0])) != str((compiled, kinds[1]))) is expected


@pytest.mark.parametrize("code", [c for c in found_bugs.reproducers(_PAGE) if "gelu" in c or c == "permuted_keys"])
def test_an_operator_that_is_wrong_eagerly_fails_its_assert(code: str) -> None:
    failed = False
    try:
        exec(found_bugs.program(code, _PAGE), {})  # of our own documentation
    except AssertionError:
        failed = True
    assert failed is said(code)


@pytest.mark.slow
def test_the_columns_are_what_every_reproducer_shows_here() -> None:
    if not _SHOWN:
        pytest.skip("the page has no answer for this PyTorch")
    version = next(v for v in MATRIX if found_bugs.release(v) == found_bugs.release(torch.__version__))
    answers = dict(found_bugs.ask(version, _PAGE))
    assert {code: answers[code] for code in _SHOWN} == _SHOWN


def test_a_reproducer_shows_its_bug_by_a_finding_of_its_operator_or_by_its_assert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = next(code for operator, code in _OF_FAKES if operator == "unique_consecutive")
    assert found_bugs.shows(f"import torch\n{line}\n", "unique_consecutive") is _SHOWN.get(line, True)
    assert not found_bugs.shows(f"import torch\n{line}\n", "amin")
    assert not found_bugs.shows("import torch\ntorch.ones(3).sum()\n", None)
    assert found_bugs.shows("assert 1 > 2\n", None)


def test_columns_are_written_over_those_that_are_there() -> None:
    page = "# Bugs\n\n| what | reproducer |\n| --- | --- |\n| `a` of two words | `a(1)` |\n| b | `b()` |\n"
    first = found_bugs.with_columns(page, {"2.12": {"a(1)": True, "b()": False}})
    assert found_bugs.reproducers(first) == {"a(1)": "a", "b()": None}
    again = found_bugs.with_columns(first, {"2.12": {"a(1)": True, "b()": True}, "2.13": {"a(1)": False}})
    assert again == (
        "# Bugs\n\n| what | 2.12 | 2.13 | reproducer |\n| --- | --- | --- | --- |\n"
        "| `a` of two words | yes | – | `a(1)` |\n| b | yes | ? | `b()` |\n"
    )
    assert found_bugs.shown(again) == {"2.12": {"a(1)": True, "b()": True}, "2.13": {"a(1)": False}}
