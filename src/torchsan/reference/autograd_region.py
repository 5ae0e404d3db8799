"""The part of the autograd graph that one call made: what flowed into it, and what came out of it at its inputs.

A parameter may be used elsewhere, too, and an output inside the call: what is collected here is the call's own part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsan.torch_internals.compiled_calls import at_end_of_backward, has_hooks, unwrapped

_MOST_NODES = 20_000
_MOST_OUTPUTS = 64

Collected = Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor], set[str]], None]
"""Takes the cotangents by output and the gradients by input of one backward, and the inputs whose are not complete."""


class Region:
    """Made before the call, because the call may change which graph an input is part of."""

    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        wanted = {n: t for n, t in inputs.items() if t.requires_grad and unwrapped(t)}
        self.leaves = {n: t for n, t in wanted.items() if t.is_leaf}
        self._edges = {n: _edge(t) for n, t in wanted.items() if not t.is_leaf}
        self._others = {n: t for n, t in wanted.items() if not t.is_leaf}
        self._by_variable = {id(t): n for n, t in self.leaves.items()}
        self._by_edge = {edge: n for n, edge in self._edges.items()}
        self._nodes = {node for node, _ in self._by_edge}

    def forget(self) -> None:
        """Keep nothing of the program alive."""
        for names in (self.leaves, self._edges, self._others, self._by_edge, self._nodes):
            names.clear()

    def follow(self, outputs: Mapping[str, torch.Tensor], collected: Collected) -> str | None:
        """Call `collected` at the end of the first backward through these outputs. Return why not, if not.

        An input is not complete if only some of the paths to it were differentiated. Holds nothing of the program.
        """
        flowing = {n: t for n, t in outputs.items() if t.grad_fn is not None and unwrapped(t)}
        if not flowing or not (self.leaves or self._edges):
            return None
        if len(flowing) > _MOST_OUTPUTS:
            return f"gradients flow into more than {_MOST_OUTPUTS} outputs"
        if any(has_hooks(t) for t in flowing.values()):
            return "an output has a hook for its gradient"
        try:
            collecting = _Collecting(self, flowing, collected)
        except _TooLargeError:
            return f"its autograd graph has more than {_MOST_NODES} nodes"
        return None if collecting.attached else "no gradient leads to an input"

    def differentiate(
        self, outputs: Mapping[str, torch.Tensor], cotangents: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Run the backward from these cotangents and return what came out at the inputs."""
        found: dict[str, torch.Tensor] = {}
        why = self.follow(outputs, lambda _cotangents, gradients, _partial: found.update(gradients))
        if why is not None:
            raise RuntimeError(why)
        starts = [n for n in cotangents if n in outputs and outputs[n].grad_fn is not None]
        ends = [*self.leaves.values(), *(t for n, t in self._others.items() if self._edges[n] == _edge(t))]
        if starts and ends:
            vectors = [cotangents[n].to(outputs[n].dtype) for n in starts]
            torch.autograd.grad([outputs[n] for n in starts], ends, vectors, allow_unused=True)
        return found

    def at(self, edge: tuple[Any, int]) -> str | None:
        """The input that an edge of the autograd graph leads to; the empty text for one that is not looked at."""
        variable = getattr(edge[0], "variable", None)
        if variable is not None:
            return self._by_variable.get(id(variable), "")
        return self._by_edge.get(edge, "" if edge[0] in self._nodes else None)


def _edge(t: torch.Tensor) -> tuple[Any, int]:
    return (t.grad_fn, t.output_nr)


class _TooLargeError(Exception):
    pass


class _Collecting:
    """The hooks of one region, until the first backward through it is over."""

    def __init__(self, region: Region, outputs: Mapping[str, torch.Tensor], collected: Collected) -> None:
        self._collected = collected
        self._starts = {n: _edge(t) for n, t in outputs.items() if region.at(_edge(t)) is None}
        self._reached: dict[str, list[tuple[int, int]]] = {}
        """For each input, the nodes that lead to it, and from which outputs each of them is reached, as bits."""
        self._bits = {n: 1 << i for i, n in enumerate(self._starts)}
        self._totals: dict[str, torch.Tensor] = {}
        self._inside: dict[str, torch.Tensor] = {}
        self._gradients: dict[str, torch.Tensor] = {}
        self._fired: set[int] = set()
        self._handles: list[Any] = []
        self._begun = self._over = False
        self._attach(region)
        self.attached = bool(self._handles)
        self._starts = {}  # Nodes of the program's, which must not live on because of this.

    def _attach(self, region: Region) -> None:
        nodes: dict[Any, int] = {}
        for name, (node, _) in self._starts.items():
            self._walk(region, node, self._bits[name], nodes)
        inner = {edge: name for name, edge in self._starts.items()}
        for number, (node, bits) in enumerate(nodes.items()):
            leads = {}
            for k, edge in enumerate(node.next_functions):
                if edge[0] is None:
                    continue
                if (lead := region.at(edge)) is not None:
                    if lead:
                        leads[k] = (lead, self._gradients)
                        self._reached.setdefault(lead, []).append((number, bits))
                elif edge in inner:
                    leads[k] = (inner[edge], self._inside)
            if leads:
                self._handles.append(node.register_hook(_hidden(self._leaving(number, leads))))
        by_node: dict[Any, list[tuple[str, int]]] = {}
        for name, (node, nr) in self._starts.items():
            by_node.setdefault(node, []).append((name, nr))
        if self._handles:
            for node, slots in by_node.items():
                self._handles.append(node.register_prehook(_hidden(self._entering(slots))))

    def _walk(self, region: Region, start: Any, bit: int, nodes: dict[Any, int]) -> None:
        stack = [start]
        while stack:
            node = stack.pop()
            if nodes.get(node, 0) & bit:
                continue
            nodes[node] = nodes.get(node, 0) | bit
            if len(nodes) > _MOST_NODES:
                raise _TooLargeError
            stack.extend(edge[0] for edge in node.next_functions if edge[0] is not None and region.at(edge) is None)

    def _entering(self, slots: list[tuple[str, int]]) -> Callable[[Any], None]:
        def entering(grad_outputs: tuple[Any, ...]) -> None:
            if self._over:
                return
            if not self._begun:
                self._begun = True
                at_end_of_backward(self._end)
            for name, nr in slots:
                if isinstance(grad_outputs[nr], torch.Tensor):
                    self._totals[name] = grad_outputs[nr].detach().clone()

        return entering

    def _leaving(self, number: int, leads: dict[int, Any]) -> Callable[[Any, Any], None]:
        def leaving(grad_inputs: tuple[Any, ...], _grad_outputs: tuple[Any, ...]) -> None:
            if self._over:
                return
            self._fired.add(number)
            for k, (name, where) in leads.items():
                grad = grad_inputs[k] if k < len(grad_inputs) else None
                if isinstance(grad, torch.Tensor) and grad.layout is torch.strided:
                    # A copy: the first gradient becomes `.grad` itself, and is added to later.
                    where[name] = where[name] + grad.detach() if name in where else grad.detach().clone()

        return leaving

    def _end(self) -> None:
        self._over = True
        for handle in self._handles:
            handle.remove()
        self._handles = []
        cotangents = {
            name: t - self._inside[name].to(t.dtype) if name in self._inside else t for name, t in self._totals.items()
        }
        used = sum(bit for name, bit in self._bits.items() if name in self._totals)
        partial = {
            name
            for name, nodes in self._reached.items()
            if any(number not in self._fired for number, bits in nodes if bits & used)
        }
        self._collected(cotangents, {n: g for n, g in self._gradients.items() if n not in partial}, partial)


def _hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """The program may have compiled autograd trace its backward: not this."""
    hidden: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch's own is untyped
    return hidden
