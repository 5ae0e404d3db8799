"""What there is to compare in a compile: its stage graphs, each of which can be run, and the inputs they may write."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from torchsan.records import Direction, Stage
from torchsan.torch_internals.compile_stages import CompileStages, Part
from torchsan.torch_internals.operators import is_checkpoint, is_pytorchs, is_users_kernel, without_token
from torchsan.torch_internals.snapshots import Snapshot

Runner = Callable[[list[Any]], Any]
Seen = Callable[[torch.fx.Node, Any], None]
Make = Callable[..., "StageGraph"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageGraph:
    """What the program is after one step. `changed` is the graph that this step made, `previous` the one before."""

    changed: Snapshot
    previous: Snapshot | None
    direction: Direction
    stages: CompileStages = field(repr=False)
    joint: Snapshot | None = None
    forward: Snapshot | None = None
    backward: Snapshot | None = None

    @property
    def stage(self) -> Stage:
        """Where in the compiler."""
        return self.changed.stage

    def snapshots(self) -> list[Snapshot]:
        """The graphs that running it may run."""
        return [s for s in (self.changed, self.joint, self.forward, self.backward) if s is not None]

    @contextmanager
    def opened(self, seen: Seen | None = None) -> Iterator[Runner]:
        """Give a function that runs this graph on the arguments of Dynamo's graph; its backward too, until the end.

        `seen` is told what each node computed.
        """
        if self.joint is None and self.forward is None:
            yield lambda args: _SnapshotInterpreter(self.changed, seen).run(*args)
            return
        compiled = self.stages.compiled
        assert compiled is not None
        with self.stages.parts[0].overridden(_Substitute(self, seen)):
            yield lambda args: compiled(*args)


def first_stage_graph(stages: CompileStages) -> StageGraph:
    """Dynamo's graph, run eagerly."""
    return StageGraph(changed=stages.dynamo.snapshots[0], previous=None, direction=Direction.FORWARD, stages=stages)


def later_stage_graphs(stages: CompileStages, *, backward: bool) -> list[StageGraph]:
    """What comes between Dynamo's graph and the compiled code, in order; with the steps of the backward or without.

    Empty for a backend that does not go through AOTAutograd, and for one that cuts the graph into several.
    """
    make = partial(StageGraph, stages=stages)
    passes = itertools.pairwise(stages.dynamo.snapshots)
    found = [make(changed=after, previous=before, direction=Direction.FORWARD) for before, after in passes]
    if len(stages.parts) == 1:
        part = stages.parts[0]
        found += _of_training(make, part, backward=backward) if part.training else _of_inference(make, part)
    return found


def _of_inference(make: Make, part: Part) -> Iterator[StageGraph]:
    previous: Snapshot | None = None
    for snapshot in part.whole.snapshots:
        yield make(changed=snapshot, previous=previous, direction=Direction.INFERENCE, forward=snapshot)
        previous = snapshot


def _of_training(make: Make, part: Part, *, backward: bool) -> Iterator[StageGraph]:
    previous: Snapshot | None = None
    forward, after = part.forward.snapshots, part.backward.snapshots
    if not forward:
        return
    direction = Direction.BACKWARD if backward else Direction.FORWARD
    halves = {"forward": forward[0], "backward": after[0] if after else None}
    for snapshot in part.whole.snapshots:
        yield make(changed=snapshot, previous=previous, direction=direction, joint=snapshot, **halves)
        previous = snapshot
    # The partition is blamed for both its halves; what it was before is the joint graph.
    first = after[0] if backward and after else None
    direction = Direction.FORWARD if first is None else Direction.BACKWARD
    changed = forward[0] if first is None else first
    yield make(changed=changed, previous=previous, direction=direction, forward=forward[0], backward=first)
    for before, snapshot in itertools.pairwise(forward):
        yield make(changed=snapshot, previous=before, direction=Direction.FORWARD, forward=snapshot, backward=first)
    for before, snapshot in itertools.pairwise(after if backward else ()):
        yield make(
            changed=snapshot, previous=before, direction=Direction.BACKWARD, forward=forward[-1], backward=snapshot
        )


class _Substitute:
    """Computes a part's graphs from their snapshots. One forward, then maybe its backward."""

    def __init__(self, graph: StageGraph, seen: Seen | None) -> None:
        self._graph = graph
        self._seen = seen
        self._part = graph.stages.parts[0]
        self._joint: _Joint | None = None

    def __call__(self, direction: Direction, args: list[Any]) -> Any:
        graph = self._graph
        if direction is Direction.BACKWARD:
            assert graph.backward is not None
            if self._joint is not None:
                return self._joint.backward(_tangents(graph.backward, args))
            return list(_SnapshotInterpreter(graph.backward, self._seen).run(*args))
        assert graph.forward is not None
        if graph.joint is None:
            return list(_SnapshotInterpreter(graph.forward, self._seen).run(*args))
        self._joint = _Joint(graph.joint, self._part.forward_outputs, self._seen)
        outputs = self._joint.forward(args)
        # What the forward keeps for the backward is not looked at: the joint graph remembers its own values.
        kept = output_nodes(graph.forward.graph)[len(outputs) :]
        return [*outputs, *(_stand_in(n) for n in kept)]


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph, and what is checkpointed in it, with what a call means in the program, not in this run of it."""

    _node: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it; with the `eps` that a norm has in the program's dtype, not in the one that this run is in.

        What is computed again in backward gets the random numbers that it had before: PyTorch's operator for it leaves
        that to the compiler, and draws others where it is run as it is.
        """
        unsaid = kwargs.get("eps") is None and (len(args) < 4 or args[3] is None)
        if unsaid and getattr(target, "__name__", "") == "rms_norm":
            args, kwargs = args[:3], kwargs | {"eps": _default_eps(self._node)}
        if is_checkpoint(target):
            return checkpoint(partial(_run_whole, args[0]), *args[1:], use_reentrant=False)
        if (inner := without_token(target, args)) is not None:
            results = inner(*args[2:], **kwargs)
            return (args[0], *results) if isinstance(results, tuple) else (args[0], results)
        return super().call_function(target, args, kwargs)


def _run_whole(module: torch.fx.GraphModule, *args: Any) -> Any:
    return _Interpreter(module).run(*args)


class _SnapshotInterpreter(_Interpreter):
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


def _default_eps(node: torch.fx.Node | None) -> float:
    """What PyTorch adds to a mean square where nobody says: eps of float64 for float64, of float32 for all others."""
    operand = node.all_input_nodes[0] if node is not None and node.all_input_nodes else None
    value = operand.meta.get("example_value", operand.meta.get("val")) if operand is not None else None
    double = isinstance(value, torch.Tensor) and value.dtype is torch.float64
    return torch.finfo(torch.float64 if double else torch.float32).eps


class _Joint:
    """A joint graph in two halves: the nodes that need no tangents, and the rest."""

    def __init__(self, snapshot: Snapshot, forward_outputs: int, seen: Seen | None) -> None:
        self._interpreter = _SnapshotInterpreter(snapshot, seen)
        self._graph = snapshot.graph
        self._forward_outputs = forward_outputs
        self._late = _tainted(snapshot.graph)
        self._read_late = {p for n in self._late for p in n.all_input_nodes}

    def forward(self, args: list[Any]) -> list[Any]:
        inputs = [n for n in self._graph.nodes if n.op == "placeholder" and n not in self._late]
        env = self._interpreter.env
        # Tokens, which keep effects in order, come first. They are taken out of the two graphs that this one becomes.
        tokens = max(0, len(inputs) - len(args))
        env.update(zip(inputs, [*(torch.empty(0) for _ in range(tokens)), *args], strict=True))
        for node in self._graph.nodes:
            if node.op in ("placeholder", "output") or node in self._late:
                continue
            old = self._overwritten(node)
            env[node] = self._interpreter.run_node(node)
            env.update(old)
        return [self._value(n) for n in output_nodes(self._graph)[tokens : self._forward_outputs]]

    def backward(self, tangents: list[Any]) -> list[Any]:
        inputs = [n for n in self._graph.nodes if n.op == "placeholder" and n in self._late]
        env = self._interpreter.env
        env.update(zip(inputs, tangents, strict=True))
        for node in self._graph.nodes:
            if node in self._late and node.op not in ("placeholder", "output"):
                env[node] = self._interpreter.run_node(node)
        return [self._value(n) for n in output_nodes(self._graph)[self._forward_outputs :]]

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


def output_nodes(graph: torch.fx.Graph) -> list[Any]:
    """What a graph returns: nodes, and constants."""
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


def launches_users_kernels(stages: CompileStages) -> bool:
    """Whether a graph of the compile, or a subgraph, has an operator in the place of a user's Triton kernel."""
    return any(is_users_kernel(node.target) for node in first_nodes(stages))


def calls_users_code(stages: CompileStages) -> bool:
    """Whether running a graph of the compile calls code that is not PyTorch's own: an operator, or a function."""
    nodes = [n for n in first_nodes(stages) if n.op in ("call_function", "call_module")]
    return any(n.op == "call_module" or not is_pytorchs(n.target) for n in nodes)


def first_nodes(stages: CompileStages) -> Iterator[torch.fx.Node]:
    """The nodes of the graphs that the compile began with, and of their subgraphs."""
    trails = [stages.dynamo, *(t for part in stages.parts for t in (part.whole, part.forward, part.backward))]
    firsts = [s for trail in trails for s in trail.snapshots[:1]]
    modules = [m for s in firsts for m in s.attributes.values() if isinstance(m, torch.fx.GraphModule)]
    graphs = [s.graph for s in firsts]
    graphs += [inner.graph for m in modules for inner in m.modules() if isinstance(inner, torch.fx.GraphModule)]
    return (node for graph in graphs for node in graph.nodes)


def maybe_mutated(graph: torch.fx.Graph) -> frozenset[int]:
    """The inputs, by position, that Dynamo's graph may write: never too few."""
    positions = {n: i for i, n in enumerate(m for m in graph.nodes if m.op == "placeholder")}
    return frozenset(positions[n] for n in _maybe_written(graph) if n in positions)


def writes_attributes(graph: torch.fx.Graph, attributes: Mapping[str, Any]) -> bool:
    """Whether it may write tensors that it holds itself, as the step of an optimizer does: it cannot run on copies.

    `attributes` are what it holds: functions that it passes to operators, too, which may hold tensors of their own.
    """
    for node in _maybe_written(graph):
        held = attributes.get(str(node.target)) if node.op == "get_attr" else None
        if isinstance(held, torch.fx.GraphModule):
            if writes_attributes(held.graph, _attributes(held)):
                return True
        elif node.op == "get_attr":
            return True
    return False


def _attributes(module: torch.fx.GraphModule) -> dict[str, Any]:
    return {str(n.target): operator.attrgetter(str(n.target))(module) for n in module.graph.nodes if n.op == "get_attr"}


def _maybe_written(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    stack = [written for node in graph.nodes for written in written_arguments(node)]
    while stack:
        node = stack.pop()
        if node not in found:
            # It may be a view of what it was made from.
            found.add(node)
            stack += node.all_input_nodes
    return found


_STATISTICS = ("running_mean", "running_var")
"""What normalisations overwrite, whether or not they declare it."""
_IN_PLACE = frozenset(
    "setitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split()
)
"""Those of Python's operators that change their first operand."""
_PURE_MODULES = ("torch.nn.functional", "torch._C._nn", "torch", "math", "builtins")
_BUILTIN = ("builtin_function_or_method", "method_descriptor", "wrapper_descriptor")


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a node may write."""
    target: Any = node.target
    if node.op not in ("call_function", "call_method"):
        return node.all_input_nodes if node.op == "call_module" else []
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    module = getattr(target, "__module__", None) or ""
    if node.kwargs.get("out") is not None:
        return node.all_input_nodes
    if hasattr(target, "_schema"):
        return _by_schemas(node, [target._schema])
    if module == "_operator":
        return _nodes(node.args[:1]) if name in _IN_PLACE else []
    if node.op == "call_method" or type(target).__name__ in _BUILTIN:
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:
            return _by_schemas(node, [getattr(packet, overload)._schema for overload in packet.overloads()])
        # Methods without an operator are written in Python: `__iadd__`, `__setitem__`, and others that end so.
        in_place = name.startswith(("__i", "__set")) or (name.endswith("_") and not name.endswith("__"))
        return _nodes(node.args[:1]) if in_place else []
    return _by_signature(node, target) if module in _PURE_MODULES else node.all_input_nodes


def _by_schemas(node: torch.fx.Node, schemas: list[Any]) -> list[torch.fx.Node]:
    """The arguments that one of the operator's overloads declares to write."""
    found: list[Any] = []
    for schema in schemas:
        for i, argument in enumerate(schema.arguments):
            by_position = i < len(node.args) and not argument.kwarg_only
            value = node.args[i] if by_position else node.kwargs.get(argument.name)
            declared = argument.alias_info is not None and argument.alias_info.is_write
            # Some overloads are functions on lists, such as `sort`.
            fits = str(argument.type).startswith("List") is isinstance(value, list | tuple)
            if (declared and fits) or argument.name in _STATISTICS:
                found.append(value)
    return _nodes(found)


def _by_signature(node: torch.fx.Node, function: Callable[..., Any]) -> list[torch.fx.Node]:
    """The arguments that a function of PyTorch's own, which is written in Python, overwrites: its parameters tell."""
    try:
        given: Mapping[str, Any] = inspect.signature(function).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return node.all_input_nodes
    found = [given.get(name) for name in _STATISTICS]
    if given.get("inplace") not in (None, False) or function.__name__.endswith("_"):
        found.append(next(iter(given.values()), None))
    if given.get("max_norm") is not None:  # Embeddings renormalise their weights with it.
        found.append(given.get("weight"))
    return _nodes(found)


def _nodes(arguments: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(arguments, found.append)
    return found
