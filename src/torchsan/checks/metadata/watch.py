"""The metadata check inside compiled programs: what the compiler believed, and what the program really gets.

The operators that a compiled program calls go through the dispatcher, where the eager judge sees them; here it is said
which launch they belong to, and what they returned is compared with what Inductor generated code for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.metadata.compare import BELIEVED_FIELDS, Difference, compare_facts, compare_results, facts
from torchsan.checks.metadata.eager import EagerJudge, enter_place, leave_place
from torchsan.checks.metadata.exhibit import exhibit_of_call, render_call
from torchsan.checks.metadata.findings import broken_guard, mismatch
from torchsan.checks.metadata.nodes import NodeWalk
from torchsan.checks.metadata.plan import Fallback, MetadataPlan
from torchsan.records import Direction, GraphId
from torchsan.torch_internals.fakes import bind_symbols, symbol_value
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CallWatch, CompiledProgram, Values


class MetadataWatch(CallWatch):
    """Looks at one call of one compiled program."""

    def __init__(self, judge: EagerJudge, program: CompiledProgram, plan: MetadataPlan, misled: set[GraphId]) -> None:
        """`misled` are the graphs in which an operator was not what it says: what follows from it, in their outputs
        and backward, is not reported beside it. It is added to, and so is what `plan` says was walked.
        """
        self._judge = judge
        self._findings = judge.findings
        self._recorder = judge.findings.recorder
        self._program = program
        self._plan = plan
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
        if function not in self._plan.walked:
            self._plan.walked.add(function)
            elsewhere = [f.node for f in self._plan.fallbacks.values()]
            walk = NodeWalk(self._judge, self._program, function, symbols, elsewhere)
            if not walk.run(inputs.values()):
                self._misled.add(self._program.record.id)

    def before(self, function: str, launch: Launch, values: Values) -> None:
        fallback = self._plan.fallbacks.get(launch.nth)
        if fallback is not None:
            enter_place(fallback.place)

    def after(self, function: str, launch: Launch, values: Values) -> None:
        leave_place()
        fallback = self._plan.fallbacks.get(launch.nth)
        if fallback is None or launch.result is None:
            return
        node, result = fallback.node, values[launch.result]
        symbols = self._symbols.get(function, {})
        found: list[Difference] = []
        if "val" in node.meta:
            believed = node.meta["val"]
            found = compare_results(result, believed, fields=BELIEVED_FIELDS, number=lambda n: symbol_value(n, symbols))
        if not any(d.field in ("structure", "size") for d in found):
            found += _stride_differences(fallback, result)
        self._recorder.ops_checked([str(node.target)])
        if found:
            self._misled.add(self._program.record.id)
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            call = render_call(node.target, args, kwargs)
            finding = mismatch(node.target, fallback.place, "compiled", found, call, relied=True)
            self._findings.report(finding, partial(exhibit_of_call, node.target, args, kwargs))

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
        found = list(compare_facts(what, facts(value), expected, BELIEVED_FIELDS))
        if found:
            self._findings.report(broken_guard(self._program.ref, what, found, node))


def _stride_differences(fallback: Fallback, result: Any) -> list[Difference]:
    """Where the program is about to fail its own assertion."""
    found: list[Difference] = []
    for item, size, stride in fallback.asserted:
        value = result[item] if item is not None and isinstance(result, list | tuple) else result
        if isinstance(value, torch.Tensor):
            real = facts(value)
            believed = dataclasses.replace(real, size=size, stride=stride, offset=None)
            what = "output" if item is None else f"output[{item}]"
            found += compare_facts(what, real, believed, ("size", "stride"))
    return found
