"""Follows a checked call to its backward: the gradients it gave, and the same with any stage graph in its place.

The hook is on the node that the compiled function left in the autograd graph, and goes with it: a program that never
runs its backward pays nothing, and nothing of the program's own is touched.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsan.errors import FindingsError, in_one_line
from torchsan.recording.spent import spent
from torchsan.reference.calls import RepeatableCall, Results
from torchsan.torch_internals.compile_stages import backward_is_traced
from torchsan.torch_internals.operators import outside_modes

log = logging.getLogger(__name__)

Judge = Callable[[Results, Mapping[str, torch.Tensor]], None]
"""Takes the gradients that the program computed, and the cotangents it computed them from."""

_COMPILED = "CompiledFunctionBackward"
_VIEWS = 3
"""How many views may lie between an output and the compiled function."""


class Backward:
    """The backward of one call. Made before the call, because the call may change which graph an input is part of."""

    def __init__(
        self, call: RepeatableCall, args: tuple[Any, ...], skipped: Callable[[str], None], stretch: spent
    ) -> None:
        """`stretch` is what the time that it takes to judge the gradients is charged to."""
        self._stretch = stretch
        self._call = call
        self._skipped = skipped
        self._before = [
            None
            if not isinstance(a, torch.Tensor) or not a.requires_grad
            else (a if a.is_leaf else (a.grad_fn, a.output_nr))
            for a in args
        ]
        self._direct: dict[str, int] = {}
        """The outputs of the compiled function's node, by their numbers."""
        self._elsewhere: dict[str, tuple[Any, torch.dtype, torch.device]] = {}
        """What the other tensors look like that gradients may flow into."""
        self._edges: dict[int, int] = {}
        """The inputs of Dynamo's graph, by the edge of the node that leads to each."""

    def follow(self, outputs: Any, args: tuple[Any, ...], compiled: Callable[..., Any], judge: Judge) -> None:
        """Let `judge` see the gradients when the program has computed them. Keeps no tensor of the program's alive."""
        flowing = self._call.differentiable(outputs, args)
        nodes = [t.grad_fn for t in flowing.values() if t.grad_fn is not None]
        if not nodes:
            return
        if backward_is_traced():
            self._skipped("gradients that compiled autograd computes are not compared")
            return
        # A backend without AOTAutograd leaves operators in the autograd graph: any of them tells that backward runs.
        node = next((n for t in nodes if (n := _compiled_node(t)) is not None), nodes[0])
        whole = node.name().startswith(_COMPILED)
        direct = {name: t.output_nr for name, t in flowing.items() if whole and t.grad_fn is node}
        self._elsewhere = {n: (t.shape, t.dtype, t.device) for n, t in flowing.items() if n not in direct}
        # A tensor that is returned twice has one gradient, which must not flow back twice.
        self._direct = {name: nr for nr, name in {nr: name for name, nr in reversed(direct.items())}.items()}
        self._edges = {k: i for k, edge in enumerate(node.next_functions) if (i := self._input_at(edge)) is not None}
        self._before = []
        waiting = [True]

        @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate it
        def computed(grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
            if waiting:
                waiting.clear()
                handle.remove()
                with outside_modes(), self._stretch:
                    self._check(grad_inputs, grad_outputs, compiled, judge)

        handle = node.register_hook(computed)

    def _check(
        self, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...], compiled: Callable[..., Any], judge: Judge
    ) -> None:
        call = self._call
        if call.inputs.stale():
            self._skipped("a parameter was changed between the forward and the backward")
            return
        try:
            cotangents = {n: g.detach() for n, nr in self._direct.items() if (g := grad_outputs[nr]) is not None}
            tensors = {f"gradient of {call.names[i]}": grad_inputs[k] for k, i in self._edges.items()}
            actual = Results(tensors={n: g.detach() if g is not None else None for n, g in tensors.items()})
            if self._elsewhere:
                # A view that the program was given is no output of the compiled function, and where there is no such
                # function nothing is: what flowed into it is not known here. Any cotangents will do to compare two
                # backwards, so both are run with some.
                cotangents |= {n: _made(*shape) for n, shape in self._elsewhere.items()}
                actual = call.run(lambda a: compiled(*a), None, cotangents=cotangents)
            judge(actual, cotangents)
        except FindingsError:
            raise
        except Exception as e:  # a check that fails ends the check, never the user's backward
            log.debug("could not check the gradients", exc_info=True)
            self._skipped(f"the gradients could not be checked: {in_one_line(e)}")

    def _input_at(self, edge: tuple[Any, int]) -> int | None:
        """The input of Dynamo's graph that an edge of the autograd graph leads to."""
        for i, before in enumerate(self._before):
            if isinstance(before, torch.Tensor):
                if getattr(edge[0], "variable", None) is before:
                    return i
            elif before is not None and before[0] is edge[0] and before[1] == edge[1]:
                return i
        return None


class EagerGradients:
    """What Dynamo's graphs give for parameters in the backward under way, run eagerly: what was captured, as it is.

    Kept only while somebody waits for it, and that is until the end of the backward.
    """

    def __init__(self) -> None:
        self._waiting: weakref.WeakSet[object] = weakref.WeakSet()
        self._found: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def await_for(self, who: object) -> None:
        """Keep what comes, as long as `who` lives and the backward is not over."""
        self._waiting.add(who)

    def note(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """One graph gives this gradient; if another graph gives one, too, neither is the whole."""
        if self._waiting:
            known = id(parameter) in self._found
            self._found[id(parameter)] = (parameter, None if known else gradient)

    def of(self, parameter: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient of a parameter, if one graph gives it."""
        found = self._found.get(id(parameter))
        return found[1] if found is not None and found[0] is parameter else None

    def forget(self, who: object) -> None:
        """The backward that `who` waited for is over."""
        self._waiting.discard(who)
        self._found.clear()


def _compiled_node(node: Any) -> Any:
    for _ in range(_VIEWS):
        if node is None or node.name().startswith(_COMPILED):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    return node if node is not None and node.name().startswith(_COMPILED) else None


def _made(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    wide = torch.complex64 if dtype.is_complex else torch.float32
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype=dtype, device=device)
