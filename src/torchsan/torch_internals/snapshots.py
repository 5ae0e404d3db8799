"""FX graphs as they were at one moment of a compile, kept while the compiler goes on changing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchsan.records import Stage

if TYPE_CHECKING:
    import torch.fx


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A graph after one step: the stage, and the pass and the patterns within it that changed it, where known."""

    stage: Stage
    pass_: str | None = None
    patterns: tuple[str, ...] = ()
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

        A graph that takes other inputs is no rung of this ladder: it cannot be run in the place of the others.
        """
        fingerprint = _fingerprint(module)
        inputs = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        if first:
            self.snapshots, self._inputs = [], inputs
        elif fingerprint == self._fingerprint or len(inputs) != len(self._inputs):
            return
        self._fingerprint = fingerprint
        graph, attributes = copy_graph(module)
        self.snapshots.append(Snapshot(stage=stage, pass_=pass_, patterns=patterns, graph=graph, attributes=attributes))

    def takes(self, module: torch.fx.GraphModule) -> bool:
        """Whether the module has the inputs of this trail, by name."""
        return self._inputs == [n.name for n in module.graph.nodes if n.op == "placeholder"]


def copy_graph(module: torch.fx.GraphModule) -> tuple[torch.fx.Graph, dict[str, Any]]:
    """Copy the graph, and those of the functions it passes to operators; parameters and constants are shared."""
    import torch.fx

    graph = torch.fx.Graph()
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    attributes: dict[str, Any] = {}
    for node in module.graph.nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
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


def trace_operators(function: Callable[..., Any], args: list[Any]) -> torch.fx.GraphModule:
    """Run the function on these arguments and return the operators that it called, before autograd takes them apart.

    Mutations stay as they are; the arguments are changed as the function changes them.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, pre_dispatch=True, tracing_mode="real", _allow_non_fake_inputs=True)(*args)
