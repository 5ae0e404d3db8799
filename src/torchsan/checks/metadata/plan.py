"""What is decided before anything runs: the operators that are looked at, and those that a compiled program calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from torchsan.checks.metadata.findings import Place
from torchsan.graphs.nodes import source_lines
from torchsan.records import KernelKind, Stage
from torchsan.torch_internals.wrapper import Function, Launch
from torchsan.torch_internals.wrapper.model import Alias
from torchsan.watch.observer import CompiledProgram

_NOT_LOOKED_AT = frozenset(
    {
        # Metadata by definition: they return their argument, a view of it, or a number.
        "aten.lift_fresh.default",
        "aten.lift.default",
        "aten.detach.default",
        "aten.detach_.default",
        "aten._local_scalar_dense.default",
        "aten.is_same_size.default",
        "aten.equal.default",
        # They take storages, which no fake tensor can stand for.
        "aten.set_.source_Storage",
        "aten.set_.source_Storage_storage_offset",
        "aten.set_.source_Tensor",
        "aten.set_.source_Tensor_storage_offset",
        "aten.set_.default",
        "aten.record_stream.default",
        "aten.data.default",
        "aten._has_compatible_shallow_copy_type.default",
    }
)


def looked_at(overload: Any) -> bool:
    """Whether calls of this operator are looked at at all."""
    return str(overload) not in _NOT_LOOKED_AT


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A launch of an operator: its node, and the sizes and strides that the program asserts of its results."""

    node: torch.fx.Node
    place: Place
    asserted: tuple[tuple[int | None, tuple[int, ...], tuple[int, ...]], ...]
    """Which of several results (None for the only one), its size and its stride."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPlan:
    """`fallbacks` are the launches of operators whose node is known, by the launch's number."""

    fallbacks: Mapping[int, Fallback]
    walked: set[str] = field(default_factory=set)
    """The functions of the program whose nodes were run by now."""


def plan(program: CompiledProgram) -> MetadataPlan:
    """Return what is known of the program before it runs."""
    found: dict[int, Fallback] = {}
    for name, function in program.model.functions.items():
        graph = program.graphs.get(name)
        if graph is None:
            continue
        nodes = {n.name: n for n in graph.module.graph.nodes}
        asserts = _asserts(function)
        for launch in function.launches():
            node = _node(program, launch, nodes) if launch.kind is KernelKind.FALLBACK else None
            if node is not None:
                found[launch.nth] = Fallback(
                    node=node,
                    place=Place(
                        stage=Stage.KERNEL,
                        graph=program.ref,
                        kernel=launch.kernel,
                        buffer=launch.result,
                        nodes=(node.name,),
                        source=source_lines([node]),
                    ),
                    asserted=tuple(_asserted(function, launch, asserts)),
                )
    return MetadataPlan(fallbacks=found)


def _node(program: CompiledProgram, launch: Launch, nodes: Mapping[str, torch.fx.Node]) -> torch.fx.Node | None:
    """The node that the launch calls the operator of."""
    operator = launch.kernel.removeprefix("torch.ops.")
    names = [n for b in program.computes.get(launch.nth, ()) for n in (*((b.node,) if b.node else ()), *b.origins)]
    return next((nodes[n] for n in names if n in nodes and str(nodes[n].target) == operator), None)


def _asserts(function: Function) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """What `assert_size_stride` says of each variable, where it says it in numbers."""
    found = {}
    for call in ast.walk(function.node):
        match call:
            case ast.Call(func=ast.Name(id="assert_size_stride"), args=[ast.Name(id=name), size, stride, *_]):
                try:
                    found[name] = (ast.literal_eval(size), ast.literal_eval(stride))
                except ValueError:
                    continue  # Symbolic sizes: the eager judge compares them.
    return found


def _asserted(function: Function, launch: Launch, asserts: Mapping[str, Any]) -> Iterator[Any]:
    for step in function.walk():
        if isinstance(step, Alias) and step.source == launch.result and step.name in asserts:
            yield (step.item, *asserts[step.name])
    if launch.result is not None and launch.result in asserts:
        yield (None, *asserts[launch.result])
