"""Put memory steps into an FX graph, after what each of its nodes allocates and frees."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.fx

from torchsan.errors import UsageError
from torchsan.ops.memory_step import memory_step as _registers_the_operator

__all__ = ["insert_memory_steps"]


def insert_memory_steps(module: torch.fx.GraphModule, *example_inputs: torch.Tensor) -> torch.fx.GraphModule:
    """Insert a memory step after every node that makes a tensor, and return the module, which is changed.

    A value is planned to die after its last use, as FX and its interpreter let it; inputs, attributes and outputs are
    others' to free. Which nodes make tensors is read from their metadata; `example_inputs` provide it where there is
    none. Raise UsageError without either.
    """
    assert _registers_the_operator is not None
    if example_inputs:
        from torch.fx.passes.shape_prop import ShapeProp

        ShapeProp(module).propagate(*example_inputs)
    graph = module.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    made = [n for n in graph.nodes if n.op.startswith("call_") and n.users and _makes_tensor(n)]
    if not made:
        raise UsageError(
            "no node of the graph is known to make a tensor; pass example inputs, or a graph with metadata",
            slug="no-metadata",
        )
    freed: dict[torch.fx.Node, list[str]] = defaultdict(list)
    for node in made:
        last = _last_use(node, order)
        if last.op != "output":
            freed[last].append(node.name)
    _insert(graph, made, freed)
    module.recompile()
    return module


def _insert(graph: torch.fx.Graph, made: list[torch.fx.Node], freed: dict[torch.fx.Node, list[str]]) -> None:
    final = made[-1]
    for node in [n for n in graph.nodes if n.op not in ("placeholder", "output")]:
        allocated = [node] if node in set(made) else []
        if not allocated and node not in freed:
            continue
        with graph.inserting_after(node):
            names = [n.name for n in allocated]
            graph.call_function(
                torch.ops.torchsan.memory_step.default, (allocated, names, freed.get(node, []), [], node is final)
            )


def _makes_tensor(node: torch.fx.Node) -> bool:
    meta = node.meta
    value = meta.get("val", meta.get("example_value"))
    if isinstance(value, torch.Tensor):
        return True
    known = meta.get("tensor_meta")
    return known is not None and hasattr(known, "shape")


def _last_use(node: torch.fx.Node, order: dict[torch.fx.Node, int]) -> torch.fx.Node:
    """The node after which nothing holds the value: its last user, or that of the list that it was taken from."""
    last = max(node.users, key=order.__getitem__)
    for source in node.all_input_nodes:
        if source.op.startswith("call_") and not _makes_tensor(source):
            later = _last_use(source, order)
            last = max(last, later, key=order.__getitem__)
    return last
