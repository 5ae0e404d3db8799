"""What a reproducer of a memory error needs: the whole graph of the program, and what it was called with."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from torchsan.graphs.data import Keep
from torchsan.graphs.encode import GraphCut
from torchsan.records import Exhibit, Finding
from torchsan.torch_internals.fakes import bind_symbols, symbol_value
from torchsan.watch.observer import CompiledProgram, Values


class CallInputs:
    """The inputs of one call, not held: who lets go of one may free it, as without torchsan."""

    def __init__(self, program: CompiledProgram) -> None:
        self._program = program
        self._refs: dict[torch.fx.Node, weakref.ref[torch.Tensor]] = {}
        self.symbols: dict[Any, Any] = {}

    def note(self, inputs: Values) -> None:
        """The program was called with these."""
        graph = self._program.graphs.get("call")
        if graph is None:
            return
        self.symbols = bind_symbols(graph.module.graph, inputs.values())
        written = {n for launch in self._program.model.functions["call"].launches() for n in launch.writes}
        placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
        self._refs = {
            node: weakref.ref(value)
            for node, (name, value) in zip(placeholders, inputs.items(), strict=False)
            if isinstance(value, torch.Tensor) and name not in written
        }

    def alive(self) -> dict[torch.fx.Node, torch.Tensor]:
        """Those that are there still and that the program does not write."""
        return {node: value for node, ref in self._refs.items() if (value := ref()) is not None}


def exhibit_of_call(
    program: CompiledProgram, given: CallInputs, finding: Finding, keep: Keep, config: Mapping[str, Any]
) -> Exhibit | None:
    """Return the graph that the program was compiled from. Inputs that are gone by now are given by their shape."""
    if "call" not in program.graphs:
        return None
    module = program.graphs["call"].module
    constants = program.constants

    def attribute(name: str) -> Any:
        return constants[name] if isinstance(constants.get(name), torch.Tensor) else module.get_parameter(name)

    cut = GraphCut(keep, given.alive(), lambda n: symbol_value(n, given.symbols), attribute)
    cut.add([n for n in module.graph.nodes if n.op == "call_function"])
    results: Any = next(n for n in module.graph.nodes if n.op == "output").args[0]
    outputs = [n for n in results if isinstance(n, torch.fx.Node) and isinstance(n.meta.get("val"), torch.Tensor)]
    gone = [g.name for g in cut.inputs if g.stored is None]
    return Exhibit(
        finding=finding.id,
        check=finding.check,
        nodes=tuple(cut.nodes),
        inputs=tuple(cut.inputs),
        outputs=tuple(dict.fromkeys(cut.reference(n) for n in outputs)),
        suspects=finding.nodes,
        config=dict(config),
        dynamic=any(not isinstance(n, int) for node in module.graph.nodes for n in _shape(node)),
        notes=(f"the values of {', '.join(gone)} were not kept; others stand in for them",) if gone else (),
    )


def _shape(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(getattr(node.meta.get("val"), "shape", ())) if node.op == "placeholder" else ()
