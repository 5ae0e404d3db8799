"""The metadata check inside compiled programs: what the compiler believed, and what the program really gets.

The operators that a compiled program calls go through the dispatcher, where the eager judge sees them; here it is said
which launch they belong to, and what they returned is compared with what Inductor generated code for.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.metadata.compare import Difference, Facts, compare_facts, compare_results, facts
from torchsan.checks.metadata.eager import EagerJudge, Place, enter_place, leave_place
from torchsan.checks.metadata.exhibit import exhibit_of_call, render_call
from torchsan.checks.metadata.findings import OperatorFindings, Report
from torchsan.checks.metadata.nodes import NodeWalk
from torchsan.checks.metadata.reports import BELIEVED, guard_report, mismatch_report
from torchsan.graphs.nodes import source_lines
from torchsan.recording import Recorder
from torchsan.records import Direction, GraphId, KernelKind, Stage
from torchsan.torch_internals.fakes import bind_symbols, symbol_value
from torchsan.torch_internals.wrapper import Function, Launch
from torchsan.torch_internals.wrapper.model import Alias
from torchsan.watch.observer import CallWatch, CompiledProgram, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A launch of an operator: its node, and the sizes and strides that the program asserts of its results."""

    node: torch.fx.Node
    place: Place
    asserted: tuple[tuple[int | None, tuple[int, ...], tuple[int, ...]], ...]
    """Which of several results (None for the only one), its size and its stride."""


def fallbacks(program: CompiledProgram) -> dict[int, Fallback]:
    """The launches of operators whose node is known, by the launch's number."""
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
    return found


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


def _asserted(function: Function, launch: Launch, asserts: Mapping[str, Any]) -> Any:
    for step in function.walk():
        if isinstance(step, Alias) and step.source == launch.result and step.name in asserts:
            yield (step.item, *asserts[step.name])
    if launch.result is not None and launch.result in asserts:
        yield (None, *asserts[launch.result])


class MetadataWatch(CallWatch):
    """Looks at one call of one compiled program."""

    def __init__(
        self,
        ledger: OperatorFindings,
        sink: Recorder,
        judge: EagerJudge,
        program: CompiledProgram,
        fallbacks: Mapping[int, Fallback],
        walked: set[str],
        misled: set[GraphId],
    ) -> None:
        """`walked` are the functions of the program whose nodes were run already, `misled` the graphs in which an
        operator was not what it says: what follows from it, in their outputs and backward, is not reported beside it.
        Both are added to.
        """
        self._judge = judge
        self._walked = walked
        self._ledger = ledger
        self._sink = sink
        self._program = program
        self._fallbacks = fallbacks
        self._symbols: dict[str, dict[Any, Any]] = {}
        self._misled = misled

    def enter(self, function: str, inputs: Values) -> None:
        graph = self._program.graphs.get(function)
        if graph is None:
            return
        symbols = self._symbols[function] = bind_symbols(graph.module.graph, inputs.values())
        placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
        ref = self._program.ref
        follows = ref.direction is Direction.BACKWARD and ref.id in self._misled
        for node, value in zip(placeholders, () if follows else inputs.values(), strict=False):
            self._edge(f"input {node.name}", node.meta.get("val"), value, symbols)
        if function not in self._walked:
            self._walked.add(function)
            elsewhere = [f.node for f in self._fallbacks.values()]
            walk = NodeWalk(self._ledger, self._sink, self._judge, self._program, function, symbols, elsewhere)
            if not walk.run(inputs.values()):
                self._misled.add(self._program.record.id)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        fallback = self._fallbacks.get(launch.nth)
        if fallback is not None:
            enter_place(fallback.place)

    def after(self, function: str, launch: Launch, values: Values) -> None:
        leave_place()
        fallback = self._fallbacks.get(launch.nth)
        if fallback is None or launch.result is None:
            return
        node, result = fallback.node, values[launch.result]
        symbols = self._symbols.get(function, {})
        found: list[Difference] = []
        if "val" in node.meta:
            believed = node.meta["val"]
            found = compare_results(result, believed, fields=BELIEVED, number=lambda n: symbol_value(n, symbols))
        if not any(d.field in ("structure", "size") for d in found):
            found += _stride_differences(fallback, result)
        self._sink.ops_checked([str(node.target)])
        if found:
            self._misled.add(self._program.record.id)
            self._ledger.report(self._report(fallback, found))

    def leave(self, function: str, outputs: Any) -> None:
        graph = self._program.graphs.get(function)
        if graph is None or self._program.record.id in self._misled:
            return
        output = next(n for n in graph.module.graph.nodes if n.op == "output")
        nodes = output.args[0]
        if not isinstance(nodes, list | tuple) or not isinstance(outputs, list | tuple) or len(nodes) != len(outputs):
            return
        for node, value in zip(nodes, outputs, strict=True):
            if isinstance(node, torch.fx.Node) and node.op != "placeholder":
                self._edge(f"output {node.name}", node.meta.get("val"), value, self._symbols.get(function, {}), node)

    def close(self, error: BaseException | None) -> None:
        leave_place()

    def _edge(
        self, what: str, believed: Any, value: Any, symbols: Mapping[Any, Any], node: torch.fx.Node | None = None
    ) -> None:
        """A graph input or output is what the graph was compiled for."""
        if not isinstance(believed, torch.Tensor) or not isinstance(value, torch.Tensor):
            return
        expected = facts(believed, lambda n: symbol_value(n, symbols))
        found = list(compare_facts(what, facts(value), expected, BELIEVED))
        if found:
            self._ledger.report(guard_report(self._program.ref, what, found, node))

    def _report(self, fallback: Fallback, found: list[Difference]) -> Report:
        node = fallback.node
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        call = render_call(node.target, args, kwargs)
        exhibit = partial(exhibit_of_call, node.target, args, kwargs)
        return mismatch_report(
            node.target, Stage.KERNEL, "compiled", found, call, relied=True, exhibit=exhibit, **fallback.place.where()
        )


def _stride_differences(fallback: Fallback, result: Any) -> list[Difference]:
    """Where the program is about to fail its own assertion."""
    found: list[Difference] = []
    for item, size, stride in fallback.asserted:
        value = result[item] if item is not None and isinstance(result, list | tuple) else result
        if isinstance(value, torch.Tensor):
            real = facts(value)
            believed = Facts(
                size=size,
                dtype=real.dtype,
                stride=stride,
                offset=None,
                device=real.device,
                layout=real.layout,
                requires_grad=real.requires_grad,
            )
            what = "output" if item is None else f"output[{item}]"
            found += compare_facts(what, real, believed, ("size", "stride"))
    return found
