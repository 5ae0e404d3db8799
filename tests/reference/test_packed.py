"""oneDNN's operators give what the plain ones give that stand for them; a wrong one in a frozen model is named."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import torchsan
from tests.planted.plant import planted
from torchsan.records import Severity
from torchsan.reference.arithmetic import Unavailable
from torchsan.reference.packed import in_plain_operators, is_packed

mkldnn = torch.ops.mkldnn
pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="PyTorch was built without oneDNN")

FUNCTIONS: list[tuple[str, list[Any], str]] = [
    ("none", [], ""),
    ("relu", [], ""),
    ("sigmoid", [], ""),
    ("tanh", [], ""),
    ("hardswish", [], ""),
    ("hardsigmoid", [], ""),
    ("swish", [], ""),
    ("gelu", [], "none"),
    ("gelu", [], "tanh"),
    ("leaky_relu", [0.1], ""),
    ("hardtanh", [-0.5, 1.0], ""),
]
CONVOLUTION = ([1, 1], [1, 1], [1, 1], 2)


def plainly(operator: Any, *args: Any) -> torch.Tensor:
    function = in_plain_operators(str(operator))
    assert function is not None
    result: torch.Tensor = function(lambda target, *given, **named: target(*given, **named), *args)
    return result


def operands() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 6, 6), (4, 2, 3, 3), (4,), (5, 3, 8), (6, 8), (6,)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize(("then", "scalars", "how"), FUNCTIONS)
def test_what_follows_a_product_or_a_convolution_is_known(then: str, scalars: list[Any], how: str) -> None:
    image, kernel, bias, rows, weight, offset = operands()
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (mkldnn._convolution_pointwise.default, (image, kernel, bias, *CONVOLUTION)),
        (mkldnn._linear_pointwise.default, (rows, weight, offset)),
        (mkldnn._linear_pointwise.default, (rows, weight, None)),
    ]
    for operator, args in calls:
        ours, theirs = (f(*args, then, scalars, how) for f in (lambda *a, o=operator: plainly(o, *a), operator))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("operator", "then"), [("add", None), ("add", "relu"), ("sub", None), ("mul", None)])
def test_a_second_operand_is_known(operator: str, then: str | None) -> None:
    image, kernel, bias, *_ = operands()
    args: tuple[Any, ...] = (image, image.flip(0), kernel, bias, *CONVOLUTION, operator, 1.0, then, [], "")
    if operator == "add":  # oneDNN has no other of a convolution.
        torch.testing.assert_close(
            plainly(mkldnn._convolution_pointwise.binary, *args), mkldnn._convolution_pointwise.binary(*args)
        )
    rows, weight, offset = operands()[3:]
    other = torch.randn(5, 3, 6)
    if then is None:
        torch.testing.assert_close(
            plainly(mkldnn._linear_pointwise.binary, rows, other, weight, offset, operator),
            mkldnn._linear_pointwise.binary(rows, other, weight, offset, operator),
        )


def test_a_packed_weight_is_told_from_a_plain_one() -> None:
    weight = torch.randn(6, 8)
    assert is_packed(weight.to_mkldnn())
    assert not is_packed(weight)
    assert not is_packed(3)


def test_what_is_not_known_is_said() -> None:
    rows, weight = operands()[3:5]
    with pytest.raises(Unavailable, match="elu is in oneDNN is not known"):
        plainly(mkldnn._linear_pointwise.default, rows, weight, None, "elu", [], "")
    assert in_plain_operators("aten.mm.default") is None


@pytest.mark.parametrize("error", [0.0, 1e-5, 0.1])
def test_a_fused_convolution_of_a_frozen_model_is_checked(error: float) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.GELU(), nn.Conv2d(16, 8, 1)).eval()
    call = r"(_convolution_pointwise\.default\()(\w+)(, [^\n]*'gelu')"

    def edit(code: str) -> str:
        return re.sub(call, rf"\1\2 * {1 + error}\3", code)

    frozen = torch._inductor.config.patch(freezing=True)
    with torchsan.session(check="values") as run, planted(edit) as changed, frozen, torch.no_grad():
        torch.compile(model)(torch.randn(2, 4, 12, 12))
    assert changed
    assert not run.coverage.skipped
    errors = [f for f in run.findings if f.severity is Severity.ERROR]
    assert [(f.kind, f.ops) for f in errors] == [("wrong-values", ("aten.gelu.default",))] * (error > 0)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.ConvTranspose2d(4, 4, 3), (2, 4, 8, 8)), (nn.LSTM(6, 8, batch_first=True), (2, 5, 6))]
)
def test_weights_that_are_packed_for_other_operators_are_left_as_they_are(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    """In a plain form they mean something else there."""
    torch._dynamo.reset()
    frozen, recurrent = torch._inductor.config.patch(freezing=True), torch._dynamo.config.patch(allow_rnn=True)
    with torchsan.session(check="values") as run, frozen, recurrent, torch.no_grad():
        torch.compile(layer.eval())(torch.randn(shape))
    assert not run.findings
