"""The steps of optimizers are counted, and a compiled step stays what it is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from torchsan.recording import Recorder
from torchsan.records import Gap, GapKind
from torchsan.torch_internals.gaps import observe_gaps
from torchsan.watch.steps import observe_steps


def parameter() -> torch.nn.Parameter:
    value = torch.nn.Parameter(torch.ones(4))
    value.grad = torch.ones(4)
    return value


def test_the_step_is_how_many_were_taken() -> None:
    recorder = Recorder()
    with observe_steps(recorder):
        assert recorder.step() is None
        often, seldom = torch.optim.SGD([parameter()]), torch.optim.SGD([parameter()])
        for _ in range(3):
            often.step()
        seldom.step()
        assert recorder.step() == 3
    often.step()
    assert recorder.step() is None


def test_a_compiled_step_breaks_no_more_graphs_and_its_count_is_right_or_none() -> None:
    def breaks(recorder: Recorder | None) -> int:
        found: list[Gap] = []
        weight = parameter()
        optimizer = torch.optim.SGD([weight], lr=1.0)
        torch._dynamo.reset()
        with observe_gaps(found.append, lambda error: pytest.fail(str(error))), ExitStack() as stack:
            if recorder is not None:
                stack.enter_context(observe_steps(recorder))
            step = torch.compile(optimizer.step, backend="eager")
            step()
            step()
            assert recorder is None or recorder.step() in (None, 2)
        torch._dynamo.reset()
        assert weight.tolist() == [-1.0] * 4
        return sum(gap.kind is not GapKind.RECOMPILE for gap in found)

    assert breaks(Recorder()) == breaks(None)
