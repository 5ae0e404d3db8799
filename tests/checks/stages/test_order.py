"""Two graphs are compared by what their reads see: a change of places is named, a rewrite is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchsan.checks.stages.effects import Effects
from torchsan.checks.stages.order import order_finding, reordered, unconfirmed
from torchsan.checks.stages.storages import Reordered
from torchsan.records import Kind, Severity, Stage

aten = torch.ops.aten


def epilogue(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = x.clone()
    product = x * 3
    x.copy_(x + 1)
    y.copy_(kept)
    return product, kept


def find(graph: torch.fx.Graph, target: Any) -> torch.fx.Node:
    found: torch.fx.Node = next(n for n in graph.nodes if n.target == target)
    return found


def changes(change: Callable[[torch.fx.Graph], None]) -> list[Reordered]:
    before = make_fx(epilogue, tracing_mode="fake")(torch.ones(3), torch.ones(3)).graph
    after = copy.deepcopy(before)
    change(after)
    after.lint()
    return list(reordered(Effects(before), Effects(after)))


def drop_clone(graph: torch.fx.Graph) -> None:
    clone = find(graph, aten.clone.default)
    (source,) = clone.all_input_nodes
    clone.replace_all_uses_with(source)
    graph.erase_node(clone)


def late_product(graph: torch.fx.Graph) -> None:
    list(graph.nodes)[-2].append(find(graph, aten.mul.Tensor))


def drop_write(graph: torch.fx.Graph) -> None:
    graph.erase_node(find(graph, aten.copy_.default))


def rewrite(graph: torch.fx.Graph) -> None:
    product = find(graph, aten.mul.Tensor)
    with graph.inserting_after(product):
        double = graph.call_function(aten.add.Tensor, (product.args[0], product.args[0]))
    with graph.inserting_after(double):
        triple = graph.call_function(aten.add.Tensor, (double, product.args[0]))
    product.replace_all_uses_with(triple)
    graph.erase_node(product)


def other_order(graph: torch.fx.Graph) -> None:
    find(graph, aten.clone.default).prepend(find(graph, aten.mul.Tensor))


@pytest.mark.parametrize(
    ("change", "reads", "writes", "late"),
    [
        (drop_clone, {"clone"}, {"copy_"}, True),
        (late_product, {"mul"}, {"copy_"}, True),
        (drop_write, {"x_1"}, {"copy_"}, False),
    ],
)
def test_what_changed_places_is_named(change: Any, reads: set[str], writes: set[str], late: bool) -> None:
    found = changes(change)
    assert {r.original.name for r in found} == reads
    assert {r.write.name for r in found} == writes
    assert {r.late for r in found} == {late}


@pytest.mark.parametrize("change", [lambda graph: None, rewrite, other_order])
def test_what_reads_the_same_versions_is_not(change: Any) -> None:
    assert changes(change) == []


def test_a_change_that_no_number_shows_is_a_note() -> None:
    found = unconfirmed("the pass p: q", changes(late_product), stage=Stage.JOINT_PASSES)
    assert (found.kind, found.severity, found.nodes) == (Kind.REORDERED_EFFECT, Severity.NOTE, ("mul", "copy_"))
    assert found.message.startswith("the pass p: q: `mul` reads input x_1 after `copy_` has written it")
    assert found.message.endswith("the results of this call do not show it")
    assert order_finding(found, changes(drop_clone)).nodes[0] == "clone"
