"""A job of one's own: checked under a budget, with findings told when they are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._inductor.select_algorithm import extern_kernels

import torchsan
from torchsan.errors import FindingsError, UsageError
from torchsan.integrations import Job
from torchsan.records import Finding


class Told:
    """An outlet that remembers."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.found: list[tuple[int, Finding]] = []
        self.last: dict[str, float] = {}
        self.closed = False

    def figures(self, figures: Any, step: int) -> None:
        self.steps.append(step)
        self.last = dict(figures)

    def finding(self, finding: Finding, step: int) -> None:
        self.found.append((step, finding))

    def close(self) -> None:
        self.closed = True


@contextmanager
def wrong_product() -> Iterator[None]:
    real = getattr(extern_kernels, "mm")  # noqa: B009  # it is made when asked for

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs).mul_(1.01)

    with patch.object(extern_kernels, "mm", wrong):
        yield


def compiled() -> Any:
    torch._dynamo.reset()
    w = torch.randn(16, 16)
    return torch.compile(lambda x: (x @ w).tanh())


def test_a_healthy_job_is_told_about_now_and_then_and_at_its_end() -> None:
    told, step = Told(), compiled()
    with Job(budget="50%", to=told, every=10) as job:
        for _ in range(25):
            step(torch.randn(8, 16))
            job.step()
    assert told.steps == [10, 20, 25]
    assert not told.found
    assert told.closed
    assert not job.should_stop
    assert told.last["torchsan/errors"] == 0
    assert told.last["torchsan/kernels"] == 2
    assert told.last["torchsan/buffers_checked"] == 2
    assert told.last["torchsan/launches_checked"] >= 2
    assert "torchsan/cost" in told.last


@pytest.mark.parametrize("on_finding", ["continue", "stop", "raise"])
def test_an_error_is_told_in_its_step_and_ends_the_job_if_that_is_asked_for(on_finding: str) -> None:
    told, step = Told(), compiled()
    with wrong_product(), Job(budget="50%", to=told, on_finding=on_finding) as job:
        step(torch.randn(8, 16))
        if on_finding == "raise":
            with pytest.raises(FindingsError, match="mm"):
                job.step(41)
        else:
            job.step(41)
    assert [(n, f.kind) for n, f in told.found] == [(41, "wrong-values")]
    assert job.should_stop == (on_finding == "stop")
    assert job.findings
    assert told.last["torchsan/errors"] == 1


def test_inside_a_session_that_one_checks() -> None:
    told, step = Told(), compiled()
    with torchsan.session(check="values") as run, Job(to=told) as job:
        step(torch.randn(8, 16))
        job.step()
    assert run.coverage.kernels == 2
    assert told.last["torchsan/kernels"] == 2
    assert "torchsan/cost" not in told.last


def test_an_outlet_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Told):
        def figures(self, figures: Any, step: int) -> None:
            raise OSError("no space left on device")

    told = Told()
    with Job(to=[Broken(), told], every=1) as job:
        job.step()
        job.step()
    assert told.steps == [1, 2, 2]
    assert "told no more to Broken: no space left on device" in caplog.text


@pytest.mark.parametrize("options", [{"on_finding": "explode"}, {"every": 0}, {"budget": "a lot"}])
def test_options_that_are_not_allowed_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError), Job(**options):
        pass
