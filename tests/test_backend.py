from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchsan
import torchsan.backend
from torchsan.backend import torchsan_backend
from torchsan.recording import Reader

WRONG_RELU = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}
"""An option of Inductor's own: relu adds one to what it should give."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    end()


def end() -> None:
    """What happens when the process ends."""
    while torchsan.backend._sanitizers:
        torchsan.backend._sanitizers.popitem()[1].end()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend=torchsan_backend, options=options)


def test_what_is_wrong_is_a_warning_also_in_the_backward_and_nothing_else_is_watched(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum() * 2

    x = torch.randn(8, requires_grad=True)
    with pytest.warns(torchsan.TorchsanWarning, match=r"F1: error: wrong-values(?s:.*)recording: ") as caught:
        y = compiled(program, check="values", out=str(tmp_path / "run"), **WRONG_RELU)(x)
    assert sum(w.category is torchsan.TorchsanWarning for w in caught) == 1
    y.backward()
    torch.compile(torch.sin)(torch.randn(4))  # By Inductor as it is.
    end()
    recording = Reader(tmp_path / "run")
    assert [g.label for g in recording.graphs()] == ["0 forward", "0 backward"]
    assert recording.closed
    assert {f.kind.value for f in recording.findings()} == {"wrong-values"}
    assert recording.coverage().buffers_checked == recording.coverage().buffers


def test_what_is_wrong_is_raised_where_that_is_asked_for_or_warnings_are_errors() -> None:
    x = torch.randn(8)
    with pytest.raises(torchsan.FindingsError, match="F1: error: wrong-values"):
        compiled(torch.relu, check="values", on_finding="raise", **WRONG_RELU)(x)
    torch.compiler.reset()
    with warnings.catch_warnings(), pytest.raises(torchsan.FindingsError, match="error: wrong-values"):
        warnings.simplefilter("error")
        compiled(torch.relu, check="values", **WRONG_RELU)(x)


def test_all_checks_see_a_compile_that_began_before_them(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sin().cumsum(0).sum()

    x = torch.randn(8, requires_grad=True)
    f = compiled(program, out=str(tmp_path / "run"))
    f(x).backward()
    assert x.grad is not None
    expected = torch.autograd.grad(program(x), x)[0]
    torch.testing.assert_close(x.grad, expected)
    end()
    recording = Reader(tmp_path / "run")
    assert not recording.findings()
    assert len(recording.events("memory")) == 2
    assert recording.coverage().ops_checked > 0
    assert not [s for s in recording.coverage().skipped if "failed" in s.reason or "stages" in s.what]


def test_inside_a_session_it_is_inductor_and_the_session_checks() -> None:
    with torchsan.session(check="values") as run:
        compiled(torch.relu, check="memory", on_finding="raise", **WRONG_RELU)(torch.randn(8))
    assert [f.kind.value for f in run.findings] == ["wrong-values"]
    assert torchsan.backend._sanitizers == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"check": "value"}, "did you mean 'values'"),
        ({"on_finding": "shout"}, "allowed: warn, raise"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_wrong_option_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        compiled(torch.relu, **options)(torch.randn(8))
