"""Under a budget launches are sampled all through the run; `steps:` checks the calls that were named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._inductor.select_algorithm import extern_kernels

import torchsan


@contextmanager
def wrong_from(call: int, factor: float = 1.01) -> Iterator[None]:
    """Plant a fault in a library call, from one of its calls on."""
    real, seen = getattr(extern_kernels, "mm"), 0  # noqa: B009  # it is made when asked for

    def wrong(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        result = real(*args, **kwargs)
        return result.mul_(factor) if seen > call else result

    with patch.object(extern_kernels, "mm", wrong):
        yield


def compiled_step(dtype: torch.dtype = torch.float32) -> Callable[[], object]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, w = torch.randn(32, 32, dtype=dtype), torch.randn(32, 32, dtype=dtype)

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).sum(-1)

    return lambda: step(x)


def train(calls: int) -> None:
    step = compiled_step()
    for _ in range(calls):
        step()


def test_an_error_that_begins_late_is_found_under_a_budget() -> None:
    with wrong_from(60), torchsan.session(check="values", budget="50%") as run:
        train(900)
    assert {(f.kind, f.severity) for f in run.findings} == {("wrong-values", "error")}
    assert run.findings[0].ops == ("aten.mm.default",)


def test_its_clean_twin_is_clean_and_says_what_was_covered() -> None:
    with torchsan.session(check=("values", "memory"), budget="50%") as run:
        train(300)
    assert not run.findings
    reasons = {s.reason for s in run.coverage.skipped}
    assert any("each of" in r and "about every" in r and "for one call in 10" in r for r in reasons), reasons
    assert "only launches are sampled under --budget; run without it for this check" in reasons
    assert run.coverage.buffers_checked


def test_without_a_budget_only_the_first_calls_would_have_been_checked() -> None:
    with wrong_from(60), torchsan.session(check="values") as run:
        train(90)
    assert not run.findings


@pytest.mark.parametrize(("steps", "found"), [("steps:3,70", True), ("steps:3,50", False)])
def test_the_calls_that_were_named_are_checked(steps: str, found: bool) -> None:
    with wrong_from(60), torchsan.session(check="values", calls=steps) as run:
        train(90)
    assert bool(run.findings) == found


def test_a_signal_asks_for_the_whole_of_the_next_call() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with wrong_from(60), torchsan.session(check="values", budget="0.0001%") as run:
        step = compiled_step()
        for _ in range(80):
            step()
        assert not run.findings
        os.kill(os.getpid(), signal.SIGUSR1)
        step()
    assert run.findings
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 1 + 1e-5), (torch.float32, 0.9), (torch.bfloat16, 1.02), (torch.float64, 1.0)]
)
def test_an_error_that_begins_late_is_found_if_all_calls_are_checked(dtype: torch.dtype, factor: float) -> None:
    with wrong_from(4, factor), torchsan.session(check="values", calls="all") as run:
        step = compiled_step(dtype)
        for _ in range(8):
            step()
    assert [(f.kind, f.severity, f.call) for f in run.findings] == (
        [("wrong-values", "error", 4)] if factor != 1 else []
    )


def test_what_needs_too_much_memory_is_left_out_and_said() -> None:
    with torchsan.session(check="values", max_memory=1000) as run:
        train(2)
    assert any("--max-memory" in s.reason for s in run.coverage.skipped)


@pytest.mark.parametrize("budget", ["0.0001%", None])
def test_a_file_asks_for_the_whole_of_a_call_soon(tmp_path: Path, budget: str | None) -> None:
    with wrong_from(60), torchsan.session(check="values", budget=budget, out=tmp_path / "run") as run:
        step = compiled_step()
        for _ in range(80):
            step()
        assert not run.findings
        (tmp_path / "run" / "check-now").touch()
        until = time.monotonic() + 60
        while not run.findings and time.monotonic() < until:
            step()
    assert run.findings


def test_a_finding_is_counted_and_not_repeated() -> None:
    with wrong_from(60), torchsan.session(check="values", budget="50%") as run:
        train(2000)
    (finding,) = run.findings
    assert finding.evidence["times"] > 1
