"""The strides of results, and the dtypes and shapes of what is saved for backward: the pass that changed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.effects import fake
from torchsan.checks.stages.findings import Difference
from torchsan.checks.stages.plan import StageGraph, output_nodes
from torchsan.records import Kind
from torchsan.reference.calls import Results

Look = tuple[torch.dtype, tuple[int, ...]]
"""The dtype and the shape of a tensor."""


def restrided(actual: Results, expected: Results) -> list[Difference]:
    """The outputs that are laid out in another way. The stride of a dimension of one element says nothing."""
    found = []
    for name, tensor in expected.tensors.items():
        other = actual.tensors.get(name)
        if not name.startswith("output") or tensor is None or other is None or other.shape != tensor.shape:
            continue
        mine, theirs = _strides(other), _strides(tensor)
        if mine != theirs:
            message = f"{name} has strides {other.stride()}, not {tensor.stride()}"
            found.append(Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message))
    return found


def _strides(tensor: torch.Tensor) -> list[int]:
    if tensor.layout is not torch.strided or not tensor.numel():
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def saved_nodes(graph: StageGraph) -> dict[str, torch.fx.Node]:
    """What the forward of a stage graph saves for backward, by position: `saved tensor 0`, `saved tensor 1`, …"""
    if graph.forward is None or graph.joint is not None:
        return {}
    first = graph.stages.parts[0].forward_outputs
    outputs = output_nodes(graph.forward.graph)[first:]
    return {f"saved tensor {i}": n for i, n in enumerate(outputs) if isinstance(n, torch.fx.Node)}


def maybe_resaved(graph: StageGraph, before: StageGraph) -> list[str]:
    """The saved tensors that come from another node than before and that are not known to look the same."""
    old, new = saved_nodes(before), saved_nodes(graph)
    return [n for n, node in new.items() if n in old and node.name != old[n].name and _unlike(node, old[n])]


def _unlike(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    x, y = fake(a), fake(b)
    return x is None or y is None or x.dtype != y.dtype or str(x.shape) != str(y.shape)


class SavedLooks:
    """What the saved tensors of a graph look like when it runs. Tell it of each node that has run."""

    def __init__(self, graph: StageGraph) -> None:
        self._names = {node.name: name for name, node in saved_nodes(graph).items()}
        self.looks: dict[str, Look] = {}

    def ran(self, node: torch.fx.Node, value: Any) -> None:
        """Note what a saved tensor looks like."""
        if node.name in self._names and isinstance(value, torch.Tensor):
            self.looks[self._names[node.name]] = (value.dtype, tuple(value.shape))


def resaved(before: SavedLooks, after: SavedLooks) -> Iterator[Difference]:
    """The saved tensors that have another dtype or shape."""
    for name, look in after.looks.items():
        old = before.looks.get(name)
        if old is not None and old != look:
            message = f"{name}, which the backward reads, is {_words(look)}, not {_words(old)}"
            yield Difference(name=name, kind=Kind.METADATA_MISMATCH, message=message)


def _words(look: Look) -> str:
    return f"{str(look[0]).removeprefix('torch.')}{list(look[1])}"
