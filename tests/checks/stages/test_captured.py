"""A finding about a whole function names the statement that a wrong result comes from."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.planted.test_capture import Edit, constant, errors, on
from torchsan.checks.stages.captured import Captured
from torchsan.records import Finding

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.linspace(-1, 2, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def only(fn: Callable[..., Any], edit: Edit, *args: torch.Tensor) -> Finding:
    """The one error in a function that was captured wrongly."""

    def program(compile_: Callable[..., Any]) -> None:
        out = compile_(fn)(*args)
        if args[0].requires_grad:
            out.sum().backward()

    (found,) = errors(program, edit)
    return found


def unpacked(x: torch.Tensor) -> torch.Tensor:
    first, _second = torch.split(x, 2, 1)
    return first * 2


def test_the_wrong_part_of_what_is_unpacked() -> None:
    found = only(unpacked, on("getitem", constant(1)), X.clone())
    assert [line.code for line in found.source] == ["return first * 2", "def unpacked"]
    assert found.ops == ("aten.mul.Tensor",)


def scaled_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    x.mul_(3)
    return y


def test_a_wrong_write_to_an_argument() -> None:
    found = only(scaled_in_place, on("mul_", constant(4)), X.clone())
    assert found.source[0].code == "x.mul_(3)"
    assert "aten.mul.Tensor" in found.ops


def _detached(graph: torch.fx.Graph) -> None:
    place = next(n for n in graph.nodes if n.op == "placeholder")
    with graph.inserting_after(place):
        detached = graph.call_method("detach", (place,))
    reader = next(n for n in place.users if n is not detached and getattr(n.target, "__name__", "") == "sin")
    reader.replace_input_with(place, detached)


def bent(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + x * 2


def test_a_wrong_gradient_is_that_of_what_reads_the_leaf() -> None:
    found = only(bent, _detached, X.clone().requires_grad_())
    assert "gradient of argument 0" in found.message
    assert found.source[0].code == "return torch.sin(x) + x * 2"


def test_a_result_that_no_graph_gave_has_the_line_of_the_function() -> None:
    captured = Captured()
    captured.begin()
    assert captured.statements({"output 0": X}, {"argument 0": X}) == {"output 0": [], "gradient of argument 0": []}


def test_no_tensor_is_kept_alive() -> None:
    captured = Captured()
    captured.begin()
    x, out = torch.ones(2), torch.ones(2)
    captured.ran(None, [x], (out,))  # type: ignore[arg-type]  # nobody asks about the graph
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
