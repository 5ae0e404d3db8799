"""Dynamo's graph with the memory that its tensors really have, beside a graph that was told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from torchsan.checks.stages.aliasing import TracedEffects, lost_writes
from torchsan.checks.stages.storages import Reordered


class _Told(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, ran: Callable[[torch.fx.Node, Any], None]) -> None:
        super().__init__(module)
        self._ran = ran

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        self._ran(n, value)
        return value


def lost(program: Callable[..., Any], graph: Callable[..., Any], *args: torch.Tensor) -> list[Reordered]:
    """What the second function, as a graph, loses of the first."""
    module = torch.fx.symbolic_trace(program)
    traced = TracedEffects()
    functional = make_fx(graph, tracing_mode="fake")(*(torch.ones(4) for _ in args)).graph
    with torch.no_grad():
        traced.run(lambda given: _Told(module, traced.ran).run(*given), [*args])
    lines = {n.name: n for n in module.graph.nodes}
    for node in functional.nodes:  # The graph's lines are those of the program's statement of the same name.
        if node.name in lines:
            node.meta["stack_trace"] = lines[node.name].meta["stack_trace"] = f"line of {node.name}"
    names = {f"input {i}": f"input {'xyz'[i]}" for i in range(len(args))}
    return list(lost_writes(traced, functional, names, ["input 0"]))


def doubled(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5, training=False).add_(x)


def on_a_copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone().add_(x)


def kept(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(x + x)


def test_a_write_through_an_alias_that_the_graph_does_not_know_is_lost() -> None:
    (found,) = lost(doubled, on_a_copy, torch.ones(4))
    assert (found.write.name, found.statement, found.storage) == ("add_", None, "input x")
    assert lost(doubled, kept, torch.ones(4)) == []


def overlapping(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return torch.add(x, y)


def separate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    doubled = x.mul(2)
    added = torch.add(doubled, y)
    x.copy_(doubled)
    return added


def test_a_read_of_an_input_that_overlaps_sees_the_write_in_the_program_alone() -> None:
    memory = torch.ones(8)
    (found,) = lost(overlapping, separate, memory[:4], memory[2:6])
    assert (found.write.name, found.statement.name, found.late) == ("mul_", "add", False)
    assert lost(overlapping, separate, memory[:4], memory[4:]) == []
