"""Follows a checked call to its backward: the gradients it gave, and the same with any stage graph in its place.

The hook is on the node that the compiled function left in the autograd graph, and goes with it: a program that never
runs its backward pays nothing, and nothing of the program's own is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from torchsan.checks.stages.localise import Search
from torchsan.errors import FindingsError
from torchsan.reference.calls import RepeatableCall, Results
from torchsan.torch_internals.compile_stages import CompileStages, backward_is_traced

log = logging.getLogger(__name__)

Judge = Callable[[Results, Search], None]

_COMPILED = "CompiledFunctionBackward"
_VIEWS = 3
"""How many views may lie between an output and the compiled function."""


class Backward:
    """The backward of one call. Made before the call, because the call may change which graph an input is part of."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self._before = [
            None
            if not isinstance(a, torch.Tensor) or not a.requires_grad
            else (a if a.is_leaf else (a.grad_fn, a.output_nr))
            for a in args
        ]

    def follow(
        self,
        stages: CompileStages,
        call: RepeatableCall,
        outputs: Any,
        args: tuple[Any, ...],
        judge: Judge,
        skipped: Callable[[str], None],
    ) -> None:
        """Let `judge` see the gradients when the program has computed them. Keeps no tensor of the program's alive."""
        flowing = call.differentiable(outputs, args)
        nodes = [t.grad_fn for t in flowing.values() if t.grad_fn is not None]
        if not nodes:
            return
        if backward_is_traced():
            skipped("gradients that compiled autograd computes are not compared")
            return
        # A backend without AOTAutograd leaves operators in the autograd graph: any of them tells that backward runs.
        node = next((n for t in nodes if (n := _compiled_node(t)) is not None), nodes[0])
        whole = node.name().startswith(_COMPILED)
        direct = {name: t.output_nr for name, t in flowing.items() if whole and t.grad_fn is node}
        shapes = {n: (t.shape, t.dtype, t.device) for n, t in flowing.items() if n not in direct}
        edges = {k: i for k, edge in enumerate(node.next_functions) if (i := self._input_at(edge)) is not None}
        self._before = []
        waiting = [True]

        def check(grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
            if call.inputs.stale():
                skipped("a parameter was changed between the forward and the backward")
                return
            cotangents = {n: grad_outputs[nr].detach() for n, nr in direct.items() if grad_outputs[nr] is not None}
            tensors = {f"gradient of {call.names[i]}": grad_inputs[k] for k, i in edges.items()}
            actual = Results(tensors={n: g.detach() if g is not None else None for n, g in tensors.items()})
            if shapes:
                # A view that the program was given is no output of the compiled function, and where there is no such
                # function nothing is: what flowed into it is not known here. Any cotangents will do to compare two
                # backwards, so both are run with some.
                cotangents |= {n: _made(*shape) for n, shape in shapes.items()}
                compiled = stages.compiled
                assert compiled is not None
                actual = call.run(lambda a: compiled(*a), None, cotangents=cotangents)
            judge(actual, Search(stages, call, cotangents, skipped))

        @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate it
        def computed(grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
            if not waiting:
                return
            waiting.clear()
            handle.remove()
            try:
                check(grad_inputs, grad_outputs)
            except FindingsError:
                raise
            except Exception as e:  # a check that fails ends the check, never the user's backward
                log.debug("could not check the gradients", exc_info=True)
                skipped(f"the gradients could not be checked: {type(e).__name__}: {e}".splitlines()[0][:200])

        handle = node.register_hook(computed)

    def _input_at(self, edge: tuple[Any, int]) -> int | None:
        """The input of Dynamo's graph that an edge of the autograd graph leads to."""
        for i, before in enumerate(self._before):
            if isinstance(before, torch.Tensor):
                if getattr(edge[0], "variable", None) is before:
                    return i
            elif before is not None and before[0] is edge[0] and before[1] == edge[1]:
                return i
        return None


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
