"""What to compare at each launch, decided once a compile: which nodes its operands and results are."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx

from torchsan.checks.values.users_kernels import UsersKernels
from torchsan.graphs.nodes import computed_by
from torchsan.records import KernelKind
from torchsan.reference.replay import gives_what_it_writes, is_mutable
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.fakes import has_symbols
from torchsan.torch_internals.operators import is_users_kernel
from torchsan.torch_internals.wrapper.model import Alias, Allocate, Function, Launch, Liveness
from torchsan.watch.observer import CompiledProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A variable that a launch leaves settled, and the node whose value it then holds.

    `item` picks one of several results. `also` are nodes that have the same value (what an input is overwritten with).
    """

    variable: str
    buffer: str
    node: torch.fx.Node
    item: int | None = None
    also: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a variable holds: the value of `nodes`, in the shape that it has as `variable`.

    The two differ when memory was handed on under another name and shape to a kernel that works in place.
    """

    nodes: tuple[torch.fx.Node, ...]
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """`known` are the operands that hold the value of nodes before the launch.

    `keep` are variables that the launch leaves and that are no node's value: whoever reads one is judged from this
    launch's operands, which have to be kept. `inner` are the kept variables that this launch reads. `nodes` are all
    the nodes it computes, `effects` those among them that overwrite what another node gave, or a part of it.
    `unchecked` are buffers that cannot be compared, each with the reason.
    """

    known: Mapping[str, Held]
    inner: tuple[str, ...]
    targets: tuple[Target, ...]
    keep: tuple[str, ...]
    nodes: tuple[torch.fx.Node, ...]
    effects: tuple[torch.fx.Node, ...]
    unchecked: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionInputs:
    """The placeholders of a function's graph, the inputs that it overwrites, and whether sizes among them vary."""

    placeholders: tuple[torch.fx.Node, ...]
    written: frozenset[str]
    symbolic: bool


def function_inputs(program: CompiledProgram) -> dict[str, FunctionInputs]:
    """Return what has to be known of the inputs of each function whose graph is known."""
    found = {}
    for name, graph in program.graphs.items():
        placeholders = tuple(n for n in graph.module.graph.nodes if n.op == "placeholder")
        launches = program.model.functions[name].launches() if name in program.model.functions else ()
        found[name] = FunctionInputs(
            placeholders=placeholders,
            written=frozenset(n for launch in launches for n in launch.writes),
            symbolic=any(has_symbols(n.meta.get("val")) for n in placeholders),
        )
    return found


def plan(program: CompiledProgram) -> dict[int, LaunchPlan]:
    """Return the plan of every launch whose graph is known, by the launch's number."""
    plans: dict[int, LaunchPlan] = {}
    for name, function in program.model.functions.items():
        graph = program.graphs.get(name)
        if graph is not None:
            plans.update(_Planner(program, function, graph).plans())
    return plans


class _Planner:
    def __init__(self, program: CompiledProgram, function: Function, graph: LoweredGraph) -> None:
        self._function = function
        self._nodes: dict[str, torch.fx.Node] = {n.name: n for n in graph.module.graph.nodes}
        self._buffers = {b.name: b for b in graph.buffers}
        self._computes = program.computes
        placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
        self._inputs: dict[str, torch.fx.Node] = dict(zip(graph.inputs, placeholders, strict=False))
        self._holds = {variable: Held(nodes=(node,), variable=variable) for variable, node in self._inputs.items()}
        self._kept: dict[str, str] = {}
        self._sources: dict[str, frozenset[torch.fx.Node]] = {}
        """The nodes that kept variables are computed from, known ones and those of kept variables before them."""
        self._users = UsersKernels(graph, program.model.kernels, function.launches(), program.computes)
        self._liveness = Liveness(function)
        self._returned = dict(_returned(function, graph))
        self._last = self._last_writers()
        results = {launch.result: launch.nth for launch in function.launches()}
        unpacked = [s for s in function.walk() if isinstance(s, Alias) and not s.reused and s.source in results]
        self._unpacked = {s.source for s in unpacked}
        # Not one that a later launch overwrites: it does not hold its node's value yet.
        self._items = {s.name: s for s in unpacked if self._last.get(s.name) in (None, results[s.source])}
        self._results = {s.source for s in self._items.values()}

    def _last_writers(self) -> dict[str, int]:
        """The launch after which a storage is settled."""
        last: dict[str, int] = {}
        for launch in self._function.launches():
            for buffer in self._computes.get(launch.nth, ()) if not launch.users_own else ():
                last[buffer.storage] = launch.nth
            for name in launch.writes if not launch.users_own else ():
                if name in self._buffers:
                    last[name] = launch.nth
        return last

    def plans(self) -> Iterator[tuple[int, LaunchPlan]]:
        for step in self._function.walk():
            if isinstance(step, Allocate):
                self._holds.pop(step.name, None)
                self._kept.pop(step.name, None)
            elif isinstance(step, Alias):
                self._alias(step)
            elif isinstance(step, Launch):
                yield step.nth, self._users_launch(step) if step.users_own else self._launch(step)

    def _alias(self, step: Alias) -> None:
        """A new name: of one of several results, of a subgraph's, or of memory that is handed on."""
        buffer = self._buffers.get(step.name)
        settled = step.name not in self._last or step.name in self._items
        if buffer is not None and buffer.node is not None and not step.reused and settled:
            self._holds[step.name] = Held(nodes=(self._nodes[buffer.node],), variable=step.name)
        elif step.source in self._holds and step.reused:
            # An in-place kernel reads what the memory held under its old name.
            self._holds[step.name] = self._holds[step.source]
        else:
            self._holds.pop(step.name, None)
            if step.source in self._kept:
                self._kept[step.name] = self._kept[step.source]

    def _launch(self, launch: Launch) -> LaunchPlan:
        known, inner = self._operands(launch)
        nodes = self._computed(launch)
        settled = tuple(self._targets(launch, self._computes.get(launch.nth, ())))
        # An operator without a node of its own overwrites what another node gave: with what, no replay can say.
        nameless = launch.kind is KernelKind.FALLBACK and not nodes
        targets = [t for t in settled if not nameless and not _is_uninitialised(t.node)]
        sources = self._known_nodes(known, inner)
        hidden = {t.buffer for t in targets if self._users.hides(t.node, sources)}
        keep = self._written(launch, settled)
        self._sources.update(dict.fromkeys(keep, sources))
        # A copy of what is judged before it is copied says no more.
        copied = [n for t in targets if t.node.op != "placeholder" for n in t.also]
        copies = {n for n in copied if getattr(n.target, "_opname", "") == "copy_"}
        return LaunchPlan(
            known=known,
            inner=inner,
            targets=tuple(t for t in targets if t.buffer not in hidden),
            keep=keep,
            nodes=nodes,
            effects=tuple(n for n in nodes if is_mutable(n) and not is_users_kernel(n.target) and n not in copies),
            unchecked=tuple((b, "depends on what a Triton kernel of the user's own has overwritten") for b in hidden),
        )

    def _operands(self, launch: Launch) -> tuple[dict[str, Held], tuple[str, ...]]:
        """The operands that hold nodes' values, and the kept ones that hold no node's."""
        read = {a.base for a in launch.arguments if a.base is not None and a.read}
        operands = [name for name in launch.operands if name in read]
        known = {name: self._holds[name] for name in operands if name in self._holds}
        return known, tuple(self._kept[n] for n in operands if n in self._kept and n not in known)

    def _computed(self, launch: Launch) -> tuple[torch.fx.Node, ...]:
        buffers = self._computes.get(launch.nth, ())
        names = dict.fromkeys(o for b in buffers for o in (*b.origins, *((b.node,) if b.node else ())))
        return tuple(self._nodes[n] for n in names if n in self._nodes)

    def _written(self, launch: Launch, settled: tuple[Target, ...]) -> tuple[str, ...]:
        """Note what the variables hold after the launch; return those that hold no node's value."""
        for name in launch.writes:
            self._holds.pop(name, None)
            self._kept.pop(name, None)
        for target in settled:
            if target.variable == target.buffer:
                self._holds[target.variable] = Held(nodes=(target.node, *target.also), variable=target.variable)
        keep = tuple(n for n in launch.writes if n not in self._holds and n not in self._results)
        self._kept.update({n: n for n in keep})
        return keep

    def _known_nodes(self, known: Mapping[str, Held], inner: tuple[str, ...]) -> frozenset[torch.fx.Node]:
        """The nodes whose values a launch is judged from."""
        held = frozenset(node for h in known.values() for node in h.nodes)
        return held.union(*(self._sources.get(name, ()) for name in inner))

    def _users_launch(self, launch: Launch) -> LaunchPlan:
        """A Triton kernel of the user's own: its operator overwrites what it is given, and the rest stays as it was."""
        overwritten = self._users.overwritten(launch)
        given = self._users.given(launch)
        known, _ = self._operands(launch)
        # What nobody has written yet is given to the kernel as well.
        known |= {name: Held(nodes=(node,), variable=name) for name, node in given.items() if name not in known}
        targets = tuple(
            Target(variable=name, buffer=name, node=given.get(name) or known[name].nodes[0])
            for name in sorted(overwritten)
            if name in known
        )
        for name in overwritten:
            self._holds.pop(name, None)
            self._kept.pop(name, None)
        self._holds.update({t.variable: Held(nodes=(t.node,), variable=t.variable) for t in targets})
        operators = [self._nodes[o] for b in self._computes.get(launch.nth, ()) for o in b.origins if o in self._nodes]
        nodes = tuple(dict.fromkeys(n for n in operators if is_users_kernel(n.target)))
        unknown = f"no reference: the user wrote {launch.kernel}, and what it is given is not known"
        return LaunchPlan(
            known=known,
            inner=(),
            targets=targets if len(nodes) == 1 else (),
            keep=(),
            nodes=nodes,
            effects=nodes,
            unchecked=tuple((n, unknown) for n in sorted(overwritten) if n not in known or len(nodes) != 1),
        )

    def _targets(self, launch: Launch, buffers: tuple[Buffer, ...]) -> Iterator[Target]:
        for buffer in self._settled(launch, buffers):
            node = self._node(buffer)
            item = self._items.get(buffer.storage)
            if node is None or buffer.storage in self._unpacked:
                continue
            if item is not None and item.source in launch.writes:
                yield Target(variable=item.source, buffer=buffer.storage, node=node, item=item.item)
            elif buffer.storage in launch.writes and self._matters(launch, buffer.storage):
                also = tuple(n for o in buffer.origins for n in _left_in(node, self._nodes[o]))
                given = _only_copied(node, also)
                node, also = (node, also) if given is None else (given, (node, *(n for n in also if n is not given)))
                yield Target(variable=buffer.storage, buffer=buffer.storage, node=node, also=also)

    def _matters(self, launch: Launch, name: str) -> bool:
        """A graph input belongs to the caller; anything else matters if something reads it."""
        return name in self._inputs or self._liveness.read_after(name, launch.line)

    def _settled(self, launch: Launch, buffers: tuple[Buffer, ...]) -> Iterator[Buffer]:
        """The buffers that have their final value after this launch: each storage once."""
        storages = dict.fromkeys([*(b.storage for b in buffers), *launch.writes])
        for storage in storages:
            if self._last.get(storage) != launch.nth:
                continue
            if storage in self._buffers:
                # What is removed stays inside the kernel, even where its name is an argument: memory it took over.
                if not self._buffers[storage].removed:
                    yield self._buffers[storage]
            else:
                # A graph input: what overwrites it stands for it.
                yield from [b for b in buffers if b.storage == storage][-1:]

    def _node(self, buffer: Buffer) -> torch.fx.Node | None:
        """The node whose value a settled buffer holds; for a graph input, the input as the launch leaves it."""
        if buffer.storage in self._inputs:
            return self._inputs[buffer.storage]
        if buffer.node is not None:
            return self._nodes[buffer.node]
        return self._users.nodes.get(buffer.name) or self._returned.get(buffer.name)


def _returned(function: Function, graph: LoweredGraph) -> Iterator[tuple[str, torch.fx.Node]]:
    """The variables that the function returns, and the nodes whose values the graph returns in their places."""
    result = next(n for n in graph.module.graph.nodes if n.op == "output").args[0]
    outputs = result if isinstance(result, tuple | list) else (result,)
    for statement in ast.walk(function.node):
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            for element, node in zip(statement.value.elts, outputs, strict=False):
                names = [n.id for n in ast.walk(element) if isinstance(n, ast.Name)]
                variable = next((n for n in names if n != "reinterpret_tensor"), None)
                if variable is not None and isinstance(node, torch.fx.Node):
                    yield variable, node


def _is_uninitialised(node: torch.fx.Node) -> bool:
    """Whether a node gives memory as it is found: `empty`, `empty_like`, `new_empty` and kin."""
    return getattr(node.target, "_opname", "").startswith(("empty", "new_empty"))


def _only_copied(placeholder: torch.fx.Node, left: tuple[Any, ...]) -> torch.fx.Node | None:
    """The node that a graph input is overwritten with, if that is all: a copy at the end, of the same dtype and shape.

    Or one result of an operator on lists that is read in no other way. Its value can be judged as any other, and be
    computed anew without anything being overwritten.
    """
    if len(left) == 1 and gives_what_it_writes(computed_by(left[0])):
        return left[0]  # type: ignore[no-any-return]  # it is a node
    copies = [n for n in left if getattr(n.target, "_opname", "") == "copy_"]
    if placeholder.op != "placeholder" or len(copies) != 1 or len(left) != 2:
        return None
    copy: Any = copies[0]
    source: Any = copy.args[1]
    metas = [n.meta.get("val") for n in (placeholder, source)]
    # As text: to compare symbolic sizes would be a guard.
    looks = {(m.dtype, str(m.shape)) if isinstance(m, torch.Tensor) else None for m in metas}
    last = all(user <= copy for user in placeholder.users) and not copy.users
    alike = len(looks) == 1 and None not in looks
    return source if alike and last and source.op == "call_function" and not is_mutable(source) else None


def _left_in(placeholder: torch.fx.Node, node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes whose values a graph input has, once a node has overwritten it or a part of it."""
    name = getattr(node.target, "_opname", "")
    if is_mutable(node) and node.args and node.args[0] is placeholder and not name.startswith("_foreach_"):
        yield node  # An operator that works in place gives what it has written.
    if name == "copy_" and node.args[0] is placeholder:
        yield node.args[1]  # type: ignore[misc]  # a copy's source is a node
    elif name.startswith("_foreach_") and name.endswith("_"):
        lists: Any = node.args[0]
        yield from (u for u in node.users if u.target is operator.getitem and lists[u.args[1]] is placeholder)
