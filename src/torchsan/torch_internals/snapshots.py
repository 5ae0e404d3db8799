"""FX graphs as they were at one moment of a compile, and which pass or pattern of Inductor's changed them.

A graph is copied when it is seen, because the compiler goes on changing it.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchsan.recording.spent import spent
from torchsan.records import Stage
from torchsan.torch_internals.operators import overload_of
from torchsan.torch_internals.patches import Patches

if TYPE_CHECKING:
    import torch.fx

    from torchsan.torch_internals.compile_stages import CompileStages

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A graph after one step: the stage, and the pass and the patterns within it that changed it, where known."""

    stage: Stage
    pass_: str | None = None
    patterns: tuple[str, ...] = ()
    function: str | None = None
    """Of a pass that the user has put into Inductor's configuration: which function it is."""
    graph: torch.fx.Graph = field(repr=False)
    attributes: dict[str, Any] = field(repr=False)
    """What the graph's `get_attr` and `call_module` nodes refer to."""

    @property
    def label(self) -> str | None:
        """The pass as findings name it: with the patterns that fired in it."""
        names = ", ".join(self.patterns)
        return f"{self.pass_}: {names}" if self.pass_ and names else self.pass_ or names or None


class Trail:
    """The snapshots of one graph through a compile; a step that changes nothing leaves none."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._fingerprint = 0
        self._inputs: list[str] = []

    def see(
        self,
        module: torch.fx.GraphModule,
        stage: Stage,
        pass_: str | None = None,
        patterns: tuple[str, ...] = (),
        *,
        first: bool = False,
    ) -> None:
        """Keep the graph if it is not the one seen last. `first` begins the trail anew.

        A graph that takes other inputs is left out: it cannot be run in the place of the others. So is one whose nodes
        are not in order, as passes leave them for a later one to sort: it cannot be run at all.
        """
        with spent("stages"):
            self._see(module, stage, pass_, patterns, first)

    def _see(
        self,
        module: torch.fx.GraphModule,
        stage: Stage,
        pass_: str | None,
        patterns: tuple[str, ...],
        first: bool,
    ) -> None:
        if not _in_order(module.graph):
            return
        fingerprint = _fingerprint(module)
        inputs = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        if first:
            self.snapshots, self._inputs = [], inputs
        elif fingerprint == self._fingerprint or len(inputs) != len(self._inputs):
            return
        self._fingerprint = fingerprint
        graph, attributes = copy_graph(module)
        self.snapshots.append(
            Snapshot(
                stage=stage,
                pass_=pass_,
                patterns=patterns,
                function=_users_pass(pass_),
                graph=graph,
                attributes=attributes,
            )
        )

    def takes(self, module: torch.fx.GraphModule) -> bool:
        """Whether the module has the inputs of this trail, by name."""
        return self._inputs == [n.name for n in module.graph.nodes if n.op == "placeholder"]


def _in_order(graph: torch.fx.Graph) -> bool:
    """Whether every node comes after those that it reads."""
    seen: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if not seen.issuperset(node.all_input_nodes):
            return False
        seen.add(node)
    return True


def copy_graph(module: torch.fx.GraphModule) -> tuple[torch.fx.Graph, dict[str, Any]]:
    """Copy the graph, and those of the functions it passes to operators; parameters and constants are shared."""
    import torch.fx

    graph = torch.fx.Graph()
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    attributes: dict[str, Any] = {}
    for node in module.graph.nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
        copied[node].target = overload_of(node.target)
        # Dynamo's own bookkeeping, which would keep the user's tensors alive.
        copied[node].meta.pop("grapharg", None)
        if node.op in ("get_attr", "call_module"):
            attributes[str(node.target)] = _held(module, str(node.target))
    return graph, attributes


def _held(module: torch.nn.Module, name: str) -> Any:
    import torch.fx

    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if isinstance(value, torch.fx.GraphModule):
        graph, _ = copy_graph(value)
        return torch.fx.GraphModule(value, graph)
    return value


def _fingerprint(module: torch.fx.GraphModule) -> int:
    """Differs when a node, its arguments or their order does, also in the functions passed to operators."""
    import torch.fx

    lines = [f"{n.name}|{n.target}|{n.args}|{n.kwargs}" for n in module.graph.nodes]
    for name, child in module.named_children():
        if isinstance(child, torch.fx.GraphModule):
            lines.append(f"{name}:{_fingerprint(child)}")
    return hash("\n".join(lines))


def trace_operators(function: Callable[..., Any], args: list[Any], *, transformed: bool) -> torch.fx.GraphModule:
    """Run the function on these arguments and return the operators that it called, before autograd takes them apart.

    Mutations stay as they are; the arguments are changed as the function changes them. One that is `transformed` is
    looked at below autograd: above it, operators get what is valid inside of a transform only.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, pre_dispatch=not transformed, tracing_mode="real", _allow_non_fake_inputs=True)(*args)


def uses_transforms(graph: torch.fx.Graph) -> bool:
    """Whether Dynamo's graph enters a transform of `torch.func`, such as `vmap`."""
    return any("increment_nesting" in getattr(node.target, "__name__", "") for node in graph.nodes)


_PHASES = {
    # Passes before AOTAutograd sees the graph belong to it: what it captured is not what Dynamo handed over.
    "_recursive_pre_grad_passes": Stage.AOT,
    "_recursive_joint_graph_passes": Stage.JOINT_PASSES,
    "_recursive_post_grad_passes": Stage.POST_GRAD_PASSES,
}
_PATTERN_ENTRIES = ("ReplacementPatternEntry", "GraphPatternEntry", "LoweringPatternEntry")


class Following(threading.local):
    """What is being compiled on this thread: its stages, the trail that passes add to, and the pass that runs."""

    def __init__(self) -> None:
        self.stages: CompileStages | None = None
        self._trail: Trail | None = None
        self._stage: Stage | None = None
        self._module: torch.fx.GraphModule | None = None
        self._depth = 0
        self.patterns: list[str] = []

    @contextmanager
    def compiling(self, stages: CompileStages) -> Iterator[None]:
        """Let what is compiled belong to `stages`; passes that run now are on Dynamo's graph."""
        before = self.stages, self._trail
        self.stages, self._trail = stages, stages.dynamo
        try:
            yield
        finally:
            self.stages, self._trail = before

    @contextmanager
    def trail(self, trail: Trail) -> Iterator[None]:
        """Let passes add to `trail`."""
        before = self._trail, self._stage, self._module, self._depth
        self._trail, self._stage, self._module, self._depth = trail, None, None, 0
        try:
            yield
        finally:
            self._trail, self._stage, self._module, self._depth = before

    @contextmanager
    def phase(self, stage: Stage, module: torch.fx.GraphModule) -> Iterator[None]:
        """A group of passes on `module`, or on a function inside the module of the group around this one."""
        if self._trail is None or self._stage is not None:
            yield
            return
        self._stage, self._module = stage, module
        try:
            self._trail.see(module, stage)
            yield
            self._trail.see(module, stage)
        finally:
            self._stage = self._module = None

    @property
    def active(self) -> bool:
        """Whether anyone wants to know of passes now."""
        return self._stage is not None

    def enter(self) -> None:
        """A pass begins, maybe inside another."""
        if self._depth == 0:
            self.patterns.clear()
        self._depth += 1

    def leave(self, name: str) -> None:
        """The pass is over."""
        self._depth -= 1
        if self._depth == 0 and self._trail is not None and self._stage is not None and self._module is not None:
            patterns = tuple(dict.fromkeys(self.patterns))
            self.patterns.clear()
            self._trail.see(self._module, self._stage, name, patterns)


def watch_passes(patches: Patches, following: Following, failed: Callable[[Exception], None]) -> None:
    """Tell `following` of every pass, until the patches are restored."""

    def phase(stage: Stage, original: Callable[..., Any], gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        with following.phase(stage, gm):
            return original(gm, *args, **kwargs)

    def enter(original: Callable[..., Any], observer: Any) -> Any:
        if following.active:
            following.enter()
        return original(observer)

    def left(name: Callable[[], str]) -> None:
        try:
            following.leave(name())
        except Exception as e:  # the user's compile must not fail because of torchsan
            log.debug("could not look at a pass", exc_info=True)
            failed(e)

    def leave(original: Callable[..., Any], observer: Any, *error: Any) -> Any:
        if following.active:
            left(lambda: observer.passname)
        return original(observer, *error)

    def replace_random(original: Callable[..., Any], gm: torch.fx.GraphModule) -> Any:
        """These passes are not announced as the others are."""
        if not following.active:
            return original(gm)
        following.enter()
        try:
            return original(gm)
        finally:
            left(lambda: "replace_random_passes")

    def apply_pattern(original: Callable[..., Any], entry: Any, *args: Any, **kwargs: Any) -> Any:
        if following.active:
            following.patterns.append(_pattern_name(entry))
        return original(entry, *args, **kwargs)

    for name, stage in _PHASES.items():
        patches.wrap("torch._inductor.compile_fx", name, functools.partial(phase, stage))
    patches.wrap("torch.fx.passes.graph_transform_observer", "GraphTransformObserver.__enter__", enter)
    patches.wrap("torch.fx.passes.graph_transform_observer", "GraphTransformObserver.__exit__", leave)
    patches.wrap("torch._inductor.fx_passes.joint_graph", "replace_random_passes", replace_random)
    for name in _PATTERN_ENTRIES:
        patches.wrap("torch._inductor.pattern_matcher", f"{name}.apply", apply_pattern)


def _users_pass(name: str | None) -> str | None:
    """The function that the user has set as this pass, as `scale at /home/me/train.py:10`; None for PyTorch's own."""
    function = getattr(sys.modules.get("torch._inductor.config"), name, None) if name else None
    if not callable(function):
        return None
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    place = f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    return f"{getattr(function, '__qualname__', type(function).__qualname__)}{place}"


def _pattern_name(entry: Any) -> str:
    """The pattern's own name, that of the function that handles it, or what it looks for."""
    named = getattr(entry, "pattern_name", None)
    if named:
        return str(named)
    handler = getattr(entry, "handler", None)
    handler = getattr(handler, "func", handler)
    if handler is None:  # A replacement without a name: the function that it was traced from has one.
        code, cells = entry.extra_check.__code__, entry.extra_check.__closure__ or ()
        handler = dict(zip(code.co_freevars, cells, strict=True)).get("search_fn")
        handler = handler.cell_contents if handler is not None else None
    if handler is not None:
        return str(getattr(handler, "__name__", handler))
    return "+".join(str(f) for f in getattr(entry.pattern, "fns", ())) or type(entry.pattern).__name__
