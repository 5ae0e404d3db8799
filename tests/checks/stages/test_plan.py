"""Which inputs a graph of Dynamo's may write."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchsan
from tests.programs.healthy import train_checkpointed
from torchsan.checks.stages.plan import maybe_mutated


def test_the_inputs_that_a_graph_writes_are_known() -> None:
    def writes(x: torch.Tensor, mean: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mean.view(-1).add_(1)
        return torch.nn.functional.relu(x @ w)

    graph = torch.fx.symbolic_trace(writes).graph
    assert maybe_mutated(graph) == {1}


def node(op: str, target: Any, *positions: int | None, **kwargs: Any) -> torch.fx.Graph:
    """A graph of one node, whose arguments are the graph's inputs by position, or None."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(5)]
    graph.create_node(op, target, tuple(None if p is None else inputs[p] for p in positions), kwargs)
    return graph


@pytest.mark.parametrize(
    ("target", "positions", "kwargs", "written"),
    [
        (torch.relu_, (0,), {}, {0}),
        (torch.batch_norm, (0, 1, 2, 3, 4, None, None, None, None), {}, {3, 4}),
        (F.batch_norm, (0, 1, 2), {}, {1, 2}),
        (F.relu, (0,), {"inplace": True}, {0}),
        (F.relu, (0,), {}, set()),
        (F.embedding, (0, 1), {"max_norm": 1.0}, {1}),
        (F.embedding, (0, 1), {}, set()),
        (torch.sort, (0,), {}, set()),
        (operator.iadd, (0, 1), {}, {0}),
        (operator.and_, (0, 1), {}, set()),
        (operator.setitem, (0, None, 1), {}, {0}),
        (torch.ops.aten.add_.Tensor, (0, 1), {}, {0}),
        (torch.ops.aten.add.out, (0, 1), {"out": None}, set()),
        (print, (0, 1), {}, set()),
        (maybe_mutated, (0, 1), {}, {0, 1}),
    ],
)
def test_schemas_and_signatures_tell_what_a_function_writes(
    target: Callable[..., Any], positions: tuple[int | None, ...], kwargs: dict[str, Any], written: set[int]
) -> None:
    assert maybe_mutated(node("call_function", target, *positions, **kwargs)) == written


@pytest.mark.parametrize(("method", "written"), [("add_", {0}), ("add", set()), ("__setitem__", {0}), ("item", set())])
def test_schemas_tell_what_a_method_writes(method: str, written: set[int]) -> None:
    assert maybe_mutated(node("call_method", method, 0, 1)) == written


@pytest.mark.filterwarnings("ignore")
def test_what_a_checkpoint_computes_again_has_the_random_numbers_that_it_had() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session(check="stages") as run:
        train_checkpointed("aot_eager")
    assert not run.findings
