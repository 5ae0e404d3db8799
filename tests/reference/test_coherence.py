"""A wrong factor or offset of one operator is found below one element's rounding, and named; rounding is not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from torchsan.reference.coherence import Change, Coherent, Slope, find_coherent
from torchsan.reference.nudge import value_noise


def residual(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return x + 0.5 * torch.tanh(h) * torch.sigmoid(h)


class _Replay(torch.fx.Interpreter):
    def __init__(self, gm: torch.fx.GraphModule, change: Change) -> None:
        super().__init__(gm)
        self._change = change

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        return self._change(n, value, n.args) if n.op == "call_function" else value


def search(
    dtype: torch.dtype, n: int, fault: Callable[[str, torch.Tensor], torch.Tensor], *, like: torch.Tensor | None = None
) -> Coherent | None:
    torch.manual_seed(0)
    gm = torch.fx.symbolic_trace(residual)
    inputs = [(torch.randn(n) if like is None else like).to(dtype).double() for _ in range(2)]

    def run(change: Change) -> torch.Tensor:
        out = _Replay(gm, change).run(*inputs)
        assert isinstance(out, torch.Tensor)
        return out

    def noisy(seed: int) -> torch.Tensor:
        eps = torch.finfo(dtype).eps / 2
        return run(lambda _n, v, _a: v * (1 + eps * value_noise(v, seed)))

    # A fused kernel: float32 inside, rounded once.
    actual = run(lambda node, v, _a: fault(node.name, v)).to(torch.promote_types(dtype, torch.float32)).to(dtype)
    return find_coherent(actual, run, [noisy(k) for k in range(12)], lambda node: node.target is not operator.getitem)


@pytest.mark.parametrize(
    ("dtype", "n", "error"),
    [
        (torch.float32, 256, 1e-5),
        (torch.float32, 4096, 1e-6),
        (torch.float32, 4096, -1e-3),
        (torch.bfloat16, 256, 2e-2),
        (torch.bfloat16, 4096, 4e-3),
        (torch.bfloat16, 4096, -0.04),
        (torch.float16, 256, 2e-2),
        (torch.float16, 4096, 4e-3),
    ],
)
def test_a_wrong_factor_is_named_with_its_size(dtype: torch.dtype, n: int, error: float) -> None:
    found = search(dtype, n, lambda name, v: v * (1 + error) if name == "sigmoid" else v)
    assert found is not None
    assert "sigmoid" in {node.name for node in found.nodes}
    assert found.slope is Slope.FACTOR
    assert found.size == pytest.approx(error, rel=0.4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [64, 256, 4096, 65536])
def test_rounding_is_not_coherent(dtype: torch.dtype, n: int) -> None:
    assert search(dtype, n, lambda _name, v: v) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("values", [[0.3], [0.1, 0.7], [1.1, -0.4, 2.7]])
def test_elements_that_are_alike_round_alike(dtype: torch.dtype, values: list[float]) -> None:
    """Many copies of one element are one sample of its rounding, not many."""
    assert search(dtype, 4096, lambda _name, v: v, like=torch.tensor(values).repeat(4096)) is None


def test_an_offset_is_found() -> None:
    found = search(torch.float32, 4096, lambda name, v: v + 1e-4 if name == "tanh" else v)
    assert found is not None
    assert found.slope is Slope.OFFSET
    assert "tanh" in {node.name for node in found.nodes}
