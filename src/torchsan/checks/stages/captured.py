"""Which statement of the program a tensor comes from, as Dynamo captured it: for findings about a whole function."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.gradients import EagerGradients
from torchsan.checks.stages.plan import output_nodes, written_arguments
from torchsan.checks.stages.refusals import Refusals
from torchsan.graphs.nodes import NOT_THE_USERS, source_lines
from torchsan.torch_internals.compile_stages import CompileStages

Statements = Mapping[str, list[torch.fx.Node]]
"""The nodes that a finding names for each thing that a call returned or left behind."""

_Tensors = dict[int, weakref.ref[torch.Tensor]]


class Captured:
    """The graphs that ran in the compiled call under way. Keeps no tensor of the program's alive."""

    def __init__(self) -> None:
        self._open = False
        self._ran: list[tuple[CompileStages, _Tensors, _Tensors]] = []

    def begin(self) -> None:
        """A call begins, about which it may be asked."""
        self._open = True

    def end(self) -> None:
        """Nothing more is asked about the call."""
        self._open = False
        self._ran.clear()

    def ran(self, stages: CompileStages, args: Sequence[Any], outputs: Any) -> None:
        """A graph of the call was run on these, and gave these."""
        if self._open:
            items = outputs if isinstance(outputs, tuple | list) else [outputs]
            self._ran.append((stages, _weakly(args), _weakly(items)))

    def graphs(self) -> tuple[CompileStages, ...]:
        """The compiles of the graphs that ran in the call."""
        return tuple(stages for stages, _, _ in self._ran)

    def statements(self, tensors: Mapping[str, torch.Tensor], leaves: Mapping[str, torch.Tensor]) -> Statements:
        """What computed each of the tensors, or wrote it last; and what reads each of the leaves, for its gradient."""
        found = {name: self._computing(t) for name, t in tensors.items()}
        return found | {f"gradient of {name}": self._reading(t) for name, t in leaves.items()}

    def _computing(self, t: torch.Tensor) -> list[torch.fx.Node]:
        for stages, inputs, outputs in reversed(self._ran):
            graph = stages.dynamo.snapshots[0].graph
            node = next((n for i, n in enumerate(output_nodes(graph)) if _is(outputs.get(i), t)), None)
            if isinstance(node, torch.fx.Node) and node.op.startswith("call_"):
                return _as_operators(stages, [node])
            place = _input(graph, inputs, t)
            writers = [n for n in graph.nodes if place is not None and place in written_arguments(n)]
            if writers:
                return _as_operators(stages, writers[-1:])
        return []

    def _reading(self, t: torch.Tensor) -> list[torch.fx.Node]:
        for stages, inputs, _ in self._ran:
            place = _input(stages.dynamo.snapshots[0].graph, inputs, t)
            if place is not None and place.users:
                return _as_operators(stages, list(place.users))
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUnderWay:
    """What those who watch the graphs of a compiled call tell the referee, who watches the whole of it."""

    eager_gradients: EagerGradients = field(default_factory=EagerGradients)
    """What Dynamo's graphs give for parameters."""
    refusals: Refusals = field(default_factory=Refusals)
    """Which graphs would not run."""
    captured: Captured = field(default_factory=Captured)
    """Which did."""


def _of_the_program(nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
    seen: set[torch.fx.Node] = set()
    waiting = nodes
    while waiting:
        own = [n for n in waiting if not all(line.file.startswith(NOT_THE_USERS) for line in source_lines([n]))]
        if own:
            return own
        seen.update(waiting)
        waiting = [p for n in waiting for p in n.all_input_nodes if p not in seen]
    return []


def _weakly(items: Sequence[Any]) -> _Tensors:
    return {i: weakref.ref(t) for i, t in enumerate(items) if isinstance(t, torch.Tensor)}


def _is(ref: weakref.ref[torch.Tensor] | None, t: torch.Tensor) -> bool:
    return ref is not None and ref() is t


def _input(graph: torch.fx.Graph, inputs: _Tensors, t: torch.Tensor) -> torch.fx.Node | None:
    places = [n for n in graph.nodes if n.op == "placeholder"]
    return next((n for i, n in enumerate(places) if _is(inputs.get(i), t)), None)


def _as_operators(stages: CompileStages, nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes of AOTAutograd's graph from the same lines, which call operators; if there are none, these themselves.

    A node from no line of the program's own stands for the nearest ones that it reads and that are from one.
    """
    nodes = _of_the_program(nodes) or nodes
    traces = {trace for n in nodes if (trace := n.meta.get("stack_trace")) is not None}
    graphs = [s.graph for part in stages.parts for s in part.whole.snapshots[:1]]
    found = [n for g in graphs for n in g.nodes if n.op.startswith("call_") and n.meta.get("stack_trace") in traces]
    return found or nodes
