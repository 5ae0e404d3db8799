"""`torchsan explain`."""

from __future__ import annotations

import pytest

from torchsan.cli.main import main
from torchsan.records import Kind


def test_a_kind_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "Wrong_Values"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrong-values\n")
    assert "`" not in out, "the marks of Markdown"
    assert "What to do:" in out


def test_without_a_kind_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(Kind)


def test_what_is_no_kind_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "wrong-vales"]) == 2
    assert "did you mean wrong-values?" in capsys.readouterr().err


def test_an_option_of_another_command_is_named_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--verbose"]) == 2
    assert "unrecognized arguments: --verbose; --verbose is an option of `torchsan run`" in capsys.readouterr().err
