"""Programs that ask for a C++ wrapper are watched and checked all the same, and the report says how."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._inductor.config

import torchsan
from tests.planted.faults import FAULTS, planted


@pytest.fixture(autouse=True)
def cpp_wrapper() -> Iterator[None]:
    with torch._inductor.config.patch(cpp_wrapper=True):
        yield
    torch._dynamo.reset()


def test_forward_and_backward_are_checked() -> None:
    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    with torchsan.session(check="values") as run:
        y = torch.compile(lambda x: (x.sin() + 1).relu().sum(-1))(x)
        y.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, x.detach().cos())
    assert run.coverage.graphs == 2
    assert run.coverage.buffers_checked == run.coverage.buffers > 0
    (skipped,) = run.coverage.skipped
    assert "cpp_wrapper" in skipped.what
    assert "Python wrapper" in skipped.reason


def test_a_wrong_kernel_is_named() -> None:
    fault = next(f for f in FAULTS if f.name == "another_function")
    with torchsan.session(check="values") as run, planted(fault):
        fault.program()
    (finding,) = run.findings
    assert "aten.sin.default" in finding.ops
    assert torch._inductor.config.cpp_wrapper, "only the session's compiles are changed"
