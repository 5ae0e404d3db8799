"""A Python function as rung zero: what it returns, changes and differentiates to, eagerly and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from torchsan.checks.stages.compare import Difference, Noise, same, structural, wrong
from torchsan.checks.stages.findings import values_of
from torchsan.records import Check, Finding, Kind, Severity, SourceLine, Stage
from torchsan.reference.arithmetic import Computing, widened
from torchsan.reference.execute import Circumstances, Results
from torchsan.reference.judge import Outcome
from torchsan.reference.replay import Arithmetic
from torchsan.torch_internals.operators import flatten


class Eager:
    """One call of a function, that can be made again from where it started, in any arithmetic."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn = fn
        # One deep copy of everything, so that what is shared (tied weights, overlapping views) still is.
        self._start = (fn, args, kwargs)
        self._circumstances = Circumstances.now()

    def compiled(self) -> tuple[Any, Results]:
        """Call the compiled function on copies, and return what it returned and all that came of it."""
        return self._call(torch.compile, None)

    def judge(self, compiled: Results) -> tuple[Finding, ...]:
        """The finding, of stage `capture`, if the compiled results are none that the function could have given."""
        _, eager = self._call(None, None)
        if same(compiled, eager):
            return ()
        if eager.draws:
            return ()
        differences = structural(compiled, eager)
        apart = {d.name for d in differences}
        names = [n for n in eager.tensors if n not in apart]
        noise = Noise(eager=eager, exact=self._exact(), nudged=self._nudged)
        judged = wrong(compiled, names, noise)
        differences += [d for d in judged if d.judgement and d.judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE)]
        return (self._finding(differences),) if differences else ()

    def _exact(self) -> Results | None:
        try:
            return self._call(None, Arithmetic.EXACT)[1]
        except Exception:  # noqa: BLE001  # a function that asks for dtypes may have no meaning in float64
            return None

    def _nudged(self, count: int) -> list[Results]:
        return [self._call(None, Arithmetic.NUDGED, seed)[1] for seed in range(1, count + 1)]

    def _call(
        self, wrap: Callable[..., Any] | None, arithmetic: Arithmetic | None, seed: int = 0
    ) -> tuple[Any, Results]:
        with self._circumstances.restored():
            fn, args, kwargs = copy.deepcopy(self._start)
            if arithmetic is Arithmetic.EXACT:
                args, kwargs = _widen((args, kwargs))
            given = _named((args, kwargs), "argument") | _module_state(fn)
            call = wrap(fn) if wrap is not None else fn
            if arithmetic is None:
                result = call(*args, **kwargs)
                return result, self._collected(result, given)
            with Computing(arithmetic, seed):
                result = call(*args, **kwargs)
                return result, self._collected(result, given)

    def _collected(self, result: Any, given: dict[str, torch.Tensor]) -> Results:
        outputs = _named(result, "output")
        moved = not torch.equal(torch.get_rng_state(), self._circumstances.random)
        tensors: dict[str, torch.Tensor | None] = {n: t.detach() for n, t in outputs.items()}
        aliases = {
            (n, m)
            for n, t in outputs.items()
            for m, g in given.items()
            if t.numel() and t.untyped_storage().data_ptr() == g.untyped_storage().data_ptr()
        }
        tensors |= {f"{n} after the call": t.detach().clone() for n, t in given.items() if not t.is_inference()}
        tensors |= _gradients(outputs, given)
        return Results(tensors=tensors, aliases=frozenset(aliases), draws=int(moved))

    def _finding(self, differences: list[Difference]) -> Finding:
        first = differences[0]
        evidence = values_of(first) | {"results": [d.name for d in differences]}
        where = (
            first.message
            or f"{first.name} is {evidence['compiled']}, not {evidence['eager']}, at {evidence['first_bad']}"
        )
        return Finding(
            kind=first.kind if first.kind is not Kind.PRECISION_LOSS else Kind.WRONG_VALUES,
            severity=Severity.ERROR,
            check=Check.STAGES,
            stage=Stage.CAPTURE,
            source=_source(self._fn),
            message=f"Dynamo's graph does not compute what the Python function does: {where}",
            evidence=evidence,
        )


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


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        wide = widened(value.detach())
        return wide.requires_grad_() if value.requires_grad else wide
    if isinstance(value, tuple | list):
        return type(value)(_widen(v) for v in value)
    if isinstance(value, dict):
        return {k: _widen(v) for k, v in value.items()}
    return value


def _source(fn: Any) -> tuple[SourceLine, ...]:
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    code = getattr(target, "__code__", None)
    if code is None:
        return ()
    return (SourceLine(file=code.co_filename, line=code.co_firstlineno, code=f"def {code.co_name}"),)
