"""A Python function, eagerly and compiled: what it returns, changes and differentiates to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from torchsan.checks.stages.findings import difference_finding, same, structural, wrong
from torchsan.records import Finding, Severity, SourceLine, Stage
from torchsan.reference.arithmetic import Arithmetic, Unavailable, widened
from torchsan.reference.calls import Circumstances, Computing, Results, share_memory
from torchsan.reference.judge import Outcome
from torchsan.reference.nudge import map_tensors
from torchsan.torch_internals.operators import flatten


class Eager:
    """One call of a function, that can be made again from where it started, in any arithmetic."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn = fn
        # One deep copy of everything, so that what is shared (tied weights, overlapping views) still is.
        self._start = (fn, args, kwargs)
        self._circumstances = Circumstances.now()
        self._results: dict[tuple[Arithmetic, int], Results] = {}

    def compiled(self) -> tuple[Any, Results]:
        """Call the compiled function on copies, and return what it returned and all that came of it."""
        return self._call(torch.compile, None)

    def judge(self, compiled: Results) -> tuple[Finding, ...]:
        """The finding, of stage `capture`, if the compiled results are none that the function could have given."""
        eager = self._again(Arithmetic.EAGER)
        if same(compiled, eager):
            return ()
        if eager.draws:
            return ()
        differences = structural(compiled, eager)
        apart = {d.name for d in differences}
        judged = wrong(compiled, [n for n in eager.tensors if n not in apart], self._again)
        differences += [d for d in judged if d.judgement and d.judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE)]
        if not differences:
            return ()
        what = "Dynamo's graph does not compute what the Python function does"
        fields = {"stage": Stage.CAPTURE, "severity": Severity.ERROR, "source": source_of(self._fn)}
        return (difference_finding(what, differences, **fields),)

    def _again(self, arithmetic: Arithmetic, seed: int = 0) -> Results:
        """What came of the eager function. Raise Unavailable if it has no meaning in float64."""
        if (arithmetic, seed) not in self._results:
            try:
                own = None if arithmetic is Arithmetic.EAGER else arithmetic
                self._results[arithmetic, seed] = self._call(None, own, seed)[1]
            except Exception as e:  # a function that asks for dtypes may have no meaning in float64
                if arithmetic is Arithmetic.EXACT:
                    raise Unavailable(str(e)) from e
                raise
        return self._results[arithmetic, seed]

    def _call(
        self, wrap: Callable[..., Any] | None, arithmetic: Arithmetic | None, seed: int = 0
    ) -> tuple[Any, Results]:
        with self._circumstances.restored():
            fn, args, kwargs = copy.deepcopy(self._start)
            if arithmetic is Arithmetic.EXACT:
                args, kwargs = map_tensors(_widened_leaf, (args, kwargs))
            given = _named((args, kwargs), "argument") | _module_state(fn)
            call = wrap(fn) if wrap is not None else fn
            with Computing(arithmetic, seed) if arithmetic is not None else nullcontext():
                result = call(*args, **kwargs)
                return result, self._collected(result, given)

    def _collected(self, result: Any, given: dict[str, torch.Tensor]) -> Results:
        outputs = _named(result, "output")
        moved = not torch.equal(torch.get_rng_state(), self._circumstances.random)
        tensors: dict[str, torch.Tensor | None] = {n: t.detach() for n, t in outputs.items()}
        aliases = {(n, m) for n, t in outputs.items() for m, g in given.items() if share_memory(t, g)}
        tensors |= {f"{n} after the call": t.detach().clone() for n, t in given.items() if not t.is_inference()}
        tensors |= _gradients(outputs, given)
        return Results(tensors=tensors, aliases=frozenset(aliases), draws=int(moved))


def _gradients(outputs: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    leaves = {n: t for n, t in given.items() if t.requires_grad and t.is_leaf}
    starts = [t for t in outputs.values() if t.requires_grad]
    if not leaves or not starts:
        return {}
    vectors = []
    for i, start in enumerate(starts):
        generator = torch.Generator().manual_seed(i)
        vectors.append(torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start.dtype))
    found = torch.autograd.grad(starts, list(leaves.values()), vectors, allow_unused=True)
    return {f"gradient of {n}": g for n, g in zip(leaves, found, strict=True)}


def _named(tree: Any, what: str) -> dict[str, torch.Tensor]:
    leaves = flatten(tree)
    return {f"{what} {i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}


def _module_state(fn: Any) -> dict[str, torch.Tensor]:
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    if not isinstance(module, torch.nn.Module):
        return {}
    state: dict[str, torch.Tensor] = {f"parameter {n}": p for n, p in module.named_parameters()}
    return state | {f"buffer {n}": b for n, b in module.named_buffers()}


def _widened_leaf(t: torch.Tensor) -> torch.Tensor:
    wide = widened(t.detach())
    return wide.requires_grad_() if t.requires_grad else wide


def source_of(fn: Any) -> tuple[SourceLine, ...]:
    """Where a function, or the forward of a module, is defined."""
    module = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    target = type(module).forward if isinstance(module, torch.nn.Module) else fn
    code = getattr(target, "__code__", None)
    if code is None:
        return ()
    return (SourceLine(file=code.co_filename, line=code.co_firstlineno, code=f"def {code.co_name}"),)
