"""What a graph reads and writes: versions are followed through views, copies, scatters and lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchsan.checks.stages.effects import Effects, mutates
from torchsan.checks.stages.storages import Comparison, Read


def trace(function: Callable[..., Any], *args: torch.Tensor) -> torch.fx.Graph:
    return make_fx(function, tracing_mode="fake")(*args).graph


def returned(function: Callable[..., Any], *args: torch.Tensor) -> list[Read]:
    graph = trace(function, *args)
    effects = Effects(graph, by_position=True)
    return [*effects.reads["output"], *effects.left.values()]


X, V = torch.zeros(4, 4), torch.ones(2, 4)


def in_place(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x[1:3] = v
    return x


def functional(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.copy_(torch.slice_scatter(x, v, 0, 1, 3))


def through_a_view(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x.view(-1)[4:12].view(2, 4).copy_(v.clone())
    return x


def reversed_halves(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x[1:2] = v[:1]
    x[2:3] = v[1:]
    return x


def selected(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.copy_(torch.select_scatter(x, v[0], 0, 1))


def selected_in_place(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x[1] = v[0]
    return x


def diagonal(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.copy_(torch.diagonal_scatter(x, v[0, :3], 1))


def diagonal_in_place(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    x.diagonal(1).copy_(v[0, :3])
    return x


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (in_place, functional),
        (in_place, through_a_view),
        (functional, through_a_view),
        (selected, selected_in_place),
        (diagonal, diagonal_in_place),
    ],
)
def test_writes_in_place_and_functional_ones_leave_the_same_version(one: Any, other: Any) -> None:
    a, b = returned(one, X, V), returned(other, X, V)
    assert [Comparison().reads(x, y) for x, y in zip(a, b, strict=True)] == [True, True, True]


def test_other_writes_leave_another_value() -> None:
    a, b = returned(in_place, X, V), returned(reversed_halves, X, V)
    assert Comparison().reads(a[0], b[0]) is not True


def test_a_functional_graph_is_left_alone() -> None:
    assert not mutates(trace(lambda x, v: (x[1:3] + v).relu(), X, V))
    assert mutates(trace(in_place, X, V))


def test_a_copy_onto_a_part_of_itself_is_seen() -> None:
    effects = Effects(trace(lambda x: x[1:].copy_(x[:-1].clone()), X))
    assert not effects.overlapping
    graph = trace(lambda x: x[1:].copy_(x[:-1].clone()), X)
    clone = next(n for n in graph.nodes if n.target is torch.ops.aten.clone.default)
    clone.replace_all_uses_with(clone.args[0])
    graph.erase_node(clone)
    assert len(Effects(graph).overlapping) == 1


def test_lists_and_several_results_have_versions_too() -> None:
    def listed(x: torch.Tensor, v: torch.Tensor) -> Any:
        torch._foreach_add_([x, v], 1)
        values, places = x.max(0)
        return x, v, values, places

    x, v, values, _, *left = returned(listed, X, V)
    assert x.value.what == v.value.what == "_foreach_add"
    assert values.value.what == "max"
    assert Comparison().reads(x, left[0]) is True
