"""`torch.ops.torchsan.memory_step`: what a graph planned to allocate and free up to here, against what happened.

For graphs of one's own, eager, interpreted or compiled. It has an effect, so it keeps its place in compiled code.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.fx

from torchsan.errors import FindingsError, UsageError
from torchsan.torch_internals.operators import StorageRef, keep_in_order, storage_key

log = logging.getLogger(__name__)

Policy = Literal["assert", "log", "off"]


@dataclass(slots=True)
class MemorySteps:
    """What one thread's steps have shown. `problems` collects everything that was not as planned."""

    policy: Policy = "assert"
    problems: list[str] = field(default_factory=list)
    _blocks: dict[int, tuple[StorageRef, set[str]]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _dying: set[str] = field(default_factory=set)
    _step: int = 0

    def step(self, allocated: Mapping[str, torch.Tensor], freed: Iterable[str], dying: set[str], last: bool) -> None:
        """Compare one step with its plan. After the last one, and after a failure, the next run starts anew."""
        if not self._seen.isdisjoint(allocated):
            self.restart()  # The graph runs again, after a run that did not come to its last step.
        self._seen.update(allocated)
        found = [*self._allocate(allocated), *self._free({*freed, *self._dying}), *self._died()]
        self._dying = dying
        number = self._step
        self._step += 1
        if last:
            self.restart()
        if not found:
            return
        self.problems += [f"step {number}: {problem}" for problem in found]
        if self.policy == "assert":
            self.restart()
            raise FindingsError(f"memory step {number}: {'; '.join(found)}", slug="memory-step")
        for problem in found:
            log.warning("memory step %d: %s", number, problem)

    def restart(self) -> None:
        """Forget the run so far; `problems` stay."""
        for state in (self._blocks, self._names, self._seen, self._dying):
            state.clear()
        self._step = 0

    def _allocate(self, allocated: Mapping[str, torch.Tensor]) -> Iterator[str]:
        for name, tensor in allocated.items():
            key = storage_key(tensor)
            if key not in self._blocks:
                self._blocks[key] = (StorageRef(tensor), set())
            # A view, or memory that is handed on: the storage lives as long as any of its names.
            self._blocks[key][1].add(name)
            self._names[name] = key
            if tensor.untyped_storage().nbytes() == 0 and tensor.numel():
                yield f"{name} was to be allocated and has no memory"

    def _free(self, names: set[str]) -> Iterator[str]:
        for name in sorted(names):
            key = self._names.pop(name, None)
            if key is None:
                yield f"{name} was to be freed and was never allocated"
                continue
            ref, holders = self._blocks[key]
            holders.discard(name)
            if not holders:
                del self._blocks[key]
                if not ref.dead:
                    yield f"{name} was to be freed and is still alive"

    def _died(self) -> Iterator[str]:
        for key, (ref, names) in list(self._blocks.items()):
            if ref.dead:
                del self._blocks[key]
                for name in sorted(names):
                    del self._names[name]
                    yield f"{name} died before it was to be freed"


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.steps = [MemorySteps()]


_thread = _PerThread()


@contextmanager
def memory_steps(policy: Policy = "assert") -> Iterator[MemorySteps]:
    """Judge this thread's memory steps in the context by `policy`: raise FindingsError, only log, or do nothing.

    >>> import torch, torchsan
    >>> with torchsan.memory_steps("log") as steps:
    ...     x = torch.ones(4)
    ...     torchsan.memory_step({"x": x})
    ...     torchsan.memory_step({}, freed=["x"], last=True)
    >>> steps.problems
    ['step 1: x was to be freed and is still alive']
    """
    steps = MemorySteps(policy)
    _thread.steps.append(steps)
    try:
        yield steps
    finally:
        _thread.steps.remove(steps)


@torch.library.custom_op(
    "torchsan::memory_step",
    mutates_args=(),
    schema="(Tensor[] allocated, str[] names, str[] freed, str[] dying, bool last) -> ()",
)
def _memory_step(
    allocated: Sequence[torch.Tensor], names: Sequence[str], freed: Sequence[str], dying: Sequence[str], last: bool
) -> None:
    steps = _thread.steps[-1]
    if steps.policy != "off":
        steps.step(dict(zip(names, allocated, strict=True)), freed, set(dying), last)


@_memory_step.register_fake
def _(
    allocated: Sequence[torch.Tensor], names: Sequence[str], freed: Sequence[str], dying: Sequence[str], last: bool
) -> None:
    return None


keep_in_order("torchsan::memory_step")


def memory_step(
    allocated: Mapping[str, torch.Tensor], freed: Sequence[str] = (), last: bool = False, *, dying: Sequence[str] = ()
) -> None:
    """Say what was allocated since the step before, under names, and which earlier names are gone by now.

    `dying` names are gone by the next step: what this one is the last to use. Names that share a storage (views,
    reuse) keep it together: it has to be gone when the last of them is. After the `last` step what is left may live
    on, as what a graph returns does. What is not as planned raises FindingsError, or what `memory_steps` says.

    >>> import torch, torchsan
    >>> x = torch.ones(4)
    >>> torchsan.memory_step({"x": x})
    >>> del x
    >>> torchsan.memory_step({}, freed=["x"], last=True)
    """
    torch.ops.torchsan.memory_step(list(allocated.values()), list(allocated), list(freed), list(dying), last)


def insert_memory_steps(module: torch.fx.GraphModule, *example_inputs: torch.Tensor) -> torch.fx.GraphModule:
    """Insert a memory step after every node that makes a tensor, and return the module, which is changed.

    A value is planned to die after its last use, as FX and its interpreter let it; inputs, attributes and outputs are
    others' to free. Which nodes make tensors is read from their metadata; `example_inputs` provide it where there is
    none. Raise UsageError without either.

    >>> import torch, torchsan
    >>> module = torch.fx.symbolic_trace(lambda x: x.sin().cos())
    >>> torchsan.insert_memory_steps(module, torch.zeros(2))(torch.zeros(2))
    tensor([1., 1.])
    """
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
