"""The rungs of one ladder, each of which can be run in the place of the compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from torchsan.records import Direction, Stage
from torchsan.torch_internals.compile_stages import CompileStages, Part
from torchsan.torch_internals.snapshots import Snapshot

Runner = Callable[[list[Any]], Any]
Seen = Callable[[torch.fx.Node, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageGraph:
    """What the program is after one step. `changed` is the graph that this step made, `previous` the one before."""

    changed: Snapshot
    previous: Snapshot | None
    direction: Direction
    ladder: CompileStages = field(repr=False)
    joint: Snapshot | None = None
    forward: Snapshot | None = None
    backward: Snapshot | None = None

    @property
    def stage(self) -> Stage:
        """Where in the compiler."""
        return self.changed.stage

    @contextmanager
    def opened(self, seen: Seen | None = None) -> Iterator[Runner]:
        """Give a function that runs this rung on the arguments of Dynamo's graph; its backward too, until the end.

        `seen` is told what each node computed.
        """
        if self.joint is None and self.forward is None:
            yield lambda args: _Interpreter(self.changed, seen).run(*args)
            return
        compiled = self.ladder.compiled
        assert compiled is not None
        with self.ladder.parts[0].overridden(_Substitute(self, seen)):
            yield lambda args: compiled(*args)


def first_stage_graph(ladder: CompileStages) -> StageGraph:
    """Dynamo's graph, run eagerly."""
    return StageGraph(changed=ladder.dynamo.snapshots[0], previous=None, direction=Direction.FORWARD, ladder=ladder)


def later_stage_graphs(ladder: CompileStages, *, backward: bool) -> list[StageGraph]:
    """What comes between Dynamo's graph and the compiled code, in order; with the steps of the backward or without.

    Empty for a backend that does not go through AOTAutograd, and for one that cuts the graph into several.
    """
    rungs: list[StageGraph] = []
    previous = ladder.dynamo.snapshots[0]
    for snapshot in ladder.dynamo.snapshots[1:]:
        rungs.append(StageGraph(changed=snapshot, previous=previous, direction=Direction.FORWARD, ladder=ladder))
        previous = snapshot
    if len(ladder.parts) == 1:
        rungs += _of_part(ladder, ladder.parts[0], backward=backward)
    return rungs


def _of_part(ladder: CompileStages, part: Part, *, backward: bool) -> Iterator[StageGraph]:
    previous: Snapshot | None = None
    forward, after = part.forward.snapshots, part.backward.snapshots
    for snapshot in part.whole.snapshots:
        if part.training and forward:
            yield StageGraph(
                changed=snapshot,
                previous=previous,
                direction=Direction.BACKWARD if backward else Direction.FORWARD,
                ladder=ladder,
                joint=snapshot,
                forward=forward[0],
                backward=after[0] if after else None,
            )
        elif not part.training:
            direction = Direction.INFERENCE
            yield StageGraph(changed=snapshot, previous=previous, direction=direction, ladder=ladder, forward=snapshot)
        previous = snapshot
    if not part.training or not forward:
        return
    first = after[0] if backward and after else None
    for i, snapshot in enumerate(forward):
        # The partition is blamed for both its halves; what it was before is the joint graph.
        seen_in = first if i == 0 and first is not None else snapshot
        direction = Direction.BACKWARD if seen_in is first and first is not None else Direction.FORWARD
        yield StageGraph(
            changed=seen_in,
            previous=previous if i == 0 else forward[i - 1],
            direction=direction,
            ladder=ladder,
            forward=snapshot,
            backward=first,
        )
    for i, snapshot in enumerate(after[1:] if backward else ()):
        yield StageGraph(
            changed=snapshot,
            previous=after[i],
            direction=Direction.BACKWARD,
            ladder=ladder,
            forward=forward[-1],
            backward=snapshot,
        )


class _Substitute:
    """Computes a part's graphs from their snapshots. One forward, then maybe its backward."""

    def __init__(self, rung: StageGraph, seen: Seen | None) -> None:
        self._rung = rung
        self._seen = seen
        self._part = rung.ladder.parts[0]
        self._joint: _Joint | None = None

    def __call__(self, direction: Direction, args: list[Any]) -> Any:
        rung = self._rung
        if direction is Direction.BACKWARD:
            assert rung.backward is not None
            if self._joint is not None:
                return self._joint.backward(_tangents(rung.backward, args))
            return list(_Interpreter(rung.backward, self._seen).run(*args))
        assert rung.forward is not None
        if rung.joint is None:
            return list(_Interpreter(rung.forward, self._seen).run(*args))
        self._joint = _Joint(rung.joint, self._part.forward_outputs, self._seen)
        outputs = self._joint.forward(args)
        # What the forward keeps for the backward is not looked at: the joint graph remembers its own values.
        kept = _outputs(rung.forward.graph)[self._part.forward_outputs :]
        return [*outputs, *(_stand_in(n) for n in kept)]


class _Interpreter(torch.fx.Interpreter):
    """Runs a snapshot, on the values given and not on copies."""

    def __init__(self, snapshot: Snapshot, seen: Seen | None) -> None:
        super().__init__(torch.nn.Module(), graph=snapshot.graph)
        self._seen = seen
        self._attributes = snapshot.attributes
        self.extra_traceback = False

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if self._seen is not None:
            self._seen(n, value)
        return value

    def fetch_attr(self, target: str) -> Any:
        value = self._attributes[target]
        return value.detach().clone() if type(value) is torch.Tensor else value


class _Joint:
    """A joint graph in two halves: the nodes that need no tangents, and the rest."""

    def __init__(self, snapshot: Snapshot, forward_outputs: int, seen: Seen | None) -> None:
        self._interpreter = _Interpreter(snapshot, seen)
        self._graph = snapshot.graph
        self._forward_outputs = forward_outputs
        self._late = _tainted(snapshot.graph)
        self._read_late = {p for n in self._late for p in n.all_input_nodes}

    def forward(self, args: list[Any]) -> list[Any]:
        inputs = [n for n in self._graph.nodes if n.op == "placeholder" and n not in self._late]
        env = self._interpreter.env
        env.update(zip(inputs, args, strict=True))
        for node in self._graph.nodes:
            if node.op in ("placeholder", "output") or node in self._late:
                continue
            old = self._overwritten(node)
            env[node] = self._interpreter.run_node(node)
            env.update(old)
        return [self._value(n) for n in _outputs(self._graph)[: self._forward_outputs]]

    def backward(self, tangents: list[Any]) -> list[Any]:
        inputs = [n for n in self._graph.nodes if n.op == "placeholder" and n in self._late]
        env = self._interpreter.env
        env.update(zip(inputs, tangents, strict=True))
        for node in self._graph.nodes:
            if node in self._late and node.op not in ("placeholder", "output"):
                env[node] = self._interpreter.run_node(node)
        return [self._value(n) for n in _outputs(self._graph)[self._forward_outputs :]]

    def _overwritten(self, node: torch.fx.Node) -> dict[torch.fx.Node, Any]:
        """The backward reads inputs as they were before the forward's last step wrote them back."""
        schema = getattr(node.target, "_schema", None)
        written = node.args[0] if schema is not None and schema.is_mutable and node.args else None
        if isinstance(written, torch.fx.Node) and written in self._read_late:
            return {written: self._interpreter.env[written].clone()}
        return {}

    def _value(self, output: Any) -> Any:
        return self._interpreter.env[output] if isinstance(output, torch.fx.Node) else output


def _tainted(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    late: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if (node.op == "placeholder" and "tangents" in str(node.target)) or any(
            p in late for p in node.all_input_nodes
        ):
            late.add(node)
    return late


def _outputs(graph: torch.fx.Graph) -> list[Any]:
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    result = output.args[0]
    return list(result) if isinstance(result, tuple | list) else [result]


def _tangents(backward: Snapshot, args: list[Any]) -> list[Any]:
    inputs = [n for n in backward.graph.nodes if n.op == "placeholder"]
    return [a for n, a in zip(inputs, args, strict=True) if "tangents" in str(n.target)]


def _stand_in(node: Any) -> Any:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else node
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype)
    return 1 if isinstance(value, torch.SymInt) else value
