"""Which calls the capture referee looks at, what it leaves alone, and that it leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchsan
from torchsan.checks.stages import referee
from torchsan.records import Severity
from torchsan.reference import twin as twin_module
from torchsan.session import Session

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def run(program: Callable[[], Any], **options: Any) -> Session:
    with torchsan.session(check="stages", **options) as session:
        program()
    return session


def compiled(fn: Any) -> Any:
    return torch.compile(fn, backend="aot_eager")


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    original = twin_module.Twin

    def twin(call: Any) -> Any:
        made.append(call.args)
        return original(call)

    monkeypatch.setattr(referee, "Twin", twin)
    return made


def test_the_first_calls_are_checked_and_those_that_look_new(twins: list[Any]) -> None:
    def program() -> None:
        double = compiled(lambda x: x * 2)
        for size in (3, 3, 3, 3, 5, 5):
            double(torch.ones(size))

    run(program)
    assert [args[0].numel() for args in twins] == [3, 3, 5]


def test_every_call_is_checked_if_that_is_asked_for(twins: list[Any]) -> None:
    def program() -> None:
        double = compiled(lambda x: x * 2)
        for _ in range(4):
            double(torch.ones(3))

    run(program, calls="all")
    assert len(twins) == 4


def test_only_the_outermost_call_has_a_twin(twins: list[Any]) -> None:
    def program() -> None:
        inner = compiled(lambda x: x * 2)
        compiled(lambda x: inner(x) + 1)(torch.ones(3))

    run(program, calls=1)
    assert len(twins) == 1


def test_a_program_that_prints_writes_and_draws_does_each_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = (tmp_path / "log").open("a")

    def noisy(x: torch.Tensor) -> Any:
        print("called")
        log.write("called\n")
        return x + torch.rand(3) + random.random()

    def program() -> list[float]:
        torch.manual_seed(0)
        random.seed(0)
        return [float(v) for v in compiled(noisy)(torch.ones(3))] + [float(torch.rand(1)), random.random()]

    results: list[Any] = []
    run(lambda: results.append(program()))
    log.close()
    assert capfd.readouterr().out == "called\n"
    assert (tmp_path / "log").read_text() == "called\n"
    torch._dynamo.reset()
    log = (tmp_path / "other").open("a")
    assert results == [program()]
    log.close()


def test_a_file_that_is_opened_inside_is_written_once_and_the_reason_is_given(tmp_path: Path) -> None:
    def noisy(x: torch.Tensor) -> Any:
        with (tmp_path / "log").open("a") as log:
            log.write("called\n")
        return x + 1

    session = run(lambda: compiled(noisy)(torch.ones(3)))
    assert (tmp_path / "log").read_text() == "called\n"
    assert any("it opens a file for writing" in s.reason for s in session.coverage.skipped)
    assert not session.findings


def test_random_numbers_that_compiled_code_draws_otherwise_are_no_finding() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    session = run(lambda: torch.compile(model)(torch.ones(4, 8)).sum().backward())
    assert [f for f in session.findings if f.severity is Severity.ERROR] == []
    assert any("draws random numbers" in s.reason for s in session.coverage.skipped)


@pytest.mark.fixed_in("2.15")
def test_one_tensor_in_the_place_of_two_that_share_memory_is_no_finding() -> None:
    def doubled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.transpose(0, -1)

    function = torch.compile(doubled)
    assert run(lambda: function(torch.ones(3))).findings == ()
    first, second = function(torch.ones(3))
    assert first is second, "else this tests nothing"


def test_another_tensor_on_the_memory_of_an_argument_is_a_warning_and_hides_no_error() -> None:
    # Arguments that are views of one tensor become views of it anew, also the one that is returned.
    factor = 2

    def scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.add_(1), y * factor

    def program() -> None:
        nonlocal factor
        function = torch.compile(scaled, options={"guard_filter_fn": lambda guards: [False for _ in guards]})
        for factor in (2, 2, 3):  # noqa: B007  # `scaled` reads it
            numbers = torch.arange(8.0)
            function(numbers[::2], numbers[1::2])

    found = run(program).findings
    assert [(f.kind, f.severity) for f in found] == [("metadata-mismatch", "warning"), ("wrong-values", "error")]


def test_python_that_gives_another_result_each_time_is_no_finding() -> None:
    import time

    class Timed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            self.when = time.perf_counter_ns()
            return x + 1

    assert not run(lambda: compiled(Timed())(torch.ones(3))).findings


def test_a_step_of_an_optimizer_is_taken_once() -> None:
    """It writes parameters that Dynamo's graph holds itself: to run that again would take the step twice."""

    def weight(compile_: Callable[[Any], Any]) -> list[float]:
        parameter = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.Adam([parameter], lr=0.5, foreach=False)
        step = compile_(optimizer.step)
        for _ in range(2):
            parameter.grad = torch.tensor([1.0, 2.0, 3.0])
            step()
        return [round(v, 4) for v in parameter.tolist()]

    found: list[Any] = []
    session = run(lambda: found.append(weight(compiled)))
    assert found == [weight(lambda fn: fn)]
    assert not session.findings


def test_nothing_is_left_behind() -> None:
    from torch._dynamo.eval_frame import OptimizeContext

    before = OptimizeContext.__call__
    kept: list[Any] = []
    run(lambda: kept.append(compiled(lambda x: x * 2)))
    assert OptimizeContext.__call__ is before
    assert kept[0](torch.ones(2)).tolist() == [2, 2]
