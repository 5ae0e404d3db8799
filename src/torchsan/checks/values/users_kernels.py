"""What Triton kernels that the user wrote do to the nodes of a graph.

The graph has an operator without a value in the place of each. It overwrites some of the nodes it is given, and
whatever comes after it in the graph reads their new values. A replay of something later takes these from memory, or it
is not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch.fx

from torchsan.reference.replay import needed
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.operators import is_users_kernel, is_view
from torchsan.torch_internals.wrapper.model import KernelDef, Launch


class UsersKernels:
    """Those of one function of a compiled program."""

    def __init__(
        self,
        graph: LoweredGraph,
        kernels: Mapping[str, KernelDef],
        launches: Iterable[Launch],
        computes: Mapping[int, tuple[Buffer, ...]],
    ) -> None:
        self._positions = {node: i for i, node in enumerate(graph.module.graph.nodes)}
        operators = {n.name: n for n in self._positions if is_users_kernel(n.target)}
        self._given: dict[int, dict[str, torch.fx.Node]] = {}
        self._overwritten: dict[int, frozenset[str]] = {}
        self.nodes: dict[str, torch.fx.Node] = {}
        """The nodes whose values variables hold, or held before a kernel overwrote them: those that one is given."""
        for launch in launches if operators else ():
            if launch.users_own:
                buffers = [b for b in computes.get(launch.nth, ()) if b.extern]
                origins = [operators[o] for b in buffers for o in b.origins if o in operators]
                operator = max(origins, key=self._positions.__getitem__, default=None)
                self._overwritten[launch.nth] = frozenset(b.storage for b in buffers)
                self._given[launch.nth] = _given(launch, kernels[launch.kernel], operator)
                self.nodes = {**self._given[launch.nth], **self.nodes}
        self._changes = [(self._positions[n], _shares_memory(n.all_input_nodes)) for n in operators.values()]

    def overwritten(self, launch: Launch) -> frozenset[str]:
        """The variables that a launch of such a kernel overwrites, as far as Triton's compiler can tell."""
        return self._overwritten.get(launch.nth, frozenset())

    def given(self, launch: Launch) -> Mapping[str, torch.fx.Node]:
        """The nodes that the graph gives the kernel, by the variables that the launch passes whole."""
        return self._given.get(launch.nth, {})

    def hides(self, target: torch.fx.Node, known: Iterable[torch.fx.Node]) -> bool:
        """Whether a replay of the target from known nodes would compute what one of the kernels has overwritten."""
        if not self._changes:
            return False
        known = frozenset(known)
        for node in needed([target], dict.fromkeys(known)):
            for parent in node.all_input_nodes:
                if parent not in known and any(
                    parent in nodes and position < self._positions[node] for position, nodes in self._changes
                ):
                    return True
        return False


def _given(launch: Launch, kernel: KernelDef, operator: torch.fx.Node | None) -> dict[str, torch.fx.Node]:
    arguments = operator.kwargs.get("kwargs") if operator is not None else None
    if not isinstance(arguments, dict):
        return {}
    passed = {a.base: p for p, a in zip(kernel.parameters, launch.arguments, strict=False) if a.base == a.text}
    nodes = {base: arguments.get(parameter) for base, parameter in passed.items() if base is not None}
    return {base: node for base, node in nodes.items() if isinstance(node, torch.fx.Node)}


def _shares_memory(nodes: Iterable[torch.fx.Node]) -> frozenset[torch.fx.Node]:
    """The nodes, and all that they are views of, and all views of those. Every argument may be overwritten."""
    found: set[torch.fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes if is_view(node) else ()
            stack += [user for user in node.users if is_view(user)]
    return frozenset(found)
