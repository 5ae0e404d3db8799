"""Which operator decided otherwise, and by how little."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx

from torchsan.reference.arithmetic import Arithmetic
from torchsan.reference.flips import Flip, See, find_flip

aten = torch.ops.aten


def flip(op: Any, x: torch.Tensor, *args: Any, nudge: torch.Tensor) -> Flip | None:
    """What is found if the nudged runs have another operand than eager's by `nudge`."""
    graph = torch.fx.Graph()
    operand = graph.placeholder("x")
    product = graph.call_function(aten.mul.Tensor, (operand, 1.0))
    decided = graph.call_function(op, (product, *args))
    graph.output(decided)

    def run(arithmetic: Arithmetic, seed: int, see: See) -> None:
        value = x + nudge if arithmetic is Arithmetic.NUDGED else x
        see(product, value)
        see(decided, op(value, *args))

    return find_flip(run)


ULP = torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("op", "x", "args", "nudge", "margin"),
    [
        (aten.argmax.default, [1.0, 1 + 2 * ULP], (-1,), [4 * ULP, 0.0], 2.0),
        (aten.argmax.default, [1.0, 1 + 2 * ULP], (), [4 * ULP, 0.0], 2.0),
        (aten.topk.default, [1.0, 1 + 3 * ULP, 0.5], (1,), [5 * ULP, 0.0, 0.0], 3.0),
        (aten.sort.default, [1 + ULP, 1.0], (), [-2 * ULP, 0.0], 1.0),
        (aten.gt.Scalar, [1 + 2 * ULP, 3.0], (1.0,), [-2 * ULP, 0.0], 2.0),
        (aten.floor.default, [1.0, 2.5], (), [-ULP, 0.0], 0.0),
        (aten.round.default, [1.5 + 2 * ULP, 2.2], (), [-4 * ULP, 0.0], 2 / 1.5),
    ],
)
def test_the_operator_and_its_margin(
    op: Any, x: list[float], args: tuple[Any, ...], nudge: list[float], margin: float
) -> None:
    found = flip(op, torch.tensor(x), *args, nudge=torch.tensor(nudge))
    assert found is not None
    assert found.node.target is op
    assert found.margin == pytest.approx(margin, rel=1e-3)
    assert [n.name for n in found.upstream] == ["mul_tensor"]
    assert found.count >= 1


def test_what_all_runs_agree_on_does_not_flip() -> None:
    assert flip(aten.argmax.default, torch.tensor([1.0, 2.0]), -1, nudge=torch.tensor([ULP, -ULP])) is None
