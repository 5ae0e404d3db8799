"""Inputs of compiled graphs have the names that the user gave them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._guards import TracingContext

from torchsan.torch_internals.input_names import InputNames, readable
from torchsan.torch_internals.patches import Patches


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']._modules['fc']._parameters['weight']", "fc.weight"),
        ("L['fn']._modules['0']._buffers['running_mean']", "0.running_mean"),
        ("L['x']", "x"),
        ("L['args'][0]", "args[0]"),
        ("G['TABLE']", "TABLE"),
        ("L['encoder']._modules['fc']._parameters['bias']", "encoder.fc.bias"),
        ("L['self'].cache", "self.cache"),
        ("", ""),
    ],
)
def test_where_dynamo_found_an_input_is_a_name(source: str, name: str) -> None:
    assert readable(source) == name


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


def test_parameters_arguments_and_gradients_of_a_compile_have_names() -> None:
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]  # torch leaves it without types
    from torch._functorch.aot_autograd import aot_module_simplified

    names, found = InputNames(), []

    def compiler(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        found.append(dict(names.of(TracingContext.try_get(), gm)))
        return make_boxed_func(gm.forward)

    patches = Patches(lambda error: pytest.fail(str(error)))
    torch._dynamo.reset()
    try:
        names.attach(patches)
        function = torch.compile(
            Scaled(), backend=lambda gm, inputs: aot_module_simplified(gm, inputs, fw_compiler=compiler)
        )
        function(torch.ones(2, 4)).sum().backward()
    finally:
        patches.restore()
        torch._dynamo.reset()
    forward, backward = found
    assert set(forward.values()) == {"fc.weight", "fc.bias", "x"}
    assert "gradient of output 0" in backward.values()
