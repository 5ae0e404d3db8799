"""One operator checked by itself, in every way: eagerly, functionalised, compiled, and against its decomposition."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsan.checks.metadata.copies import private_copy
from torchsan.checks.metadata.crossref import crossref
from torchsan.checks.metadata.decompositions import check_decomposition
from torchsan.checks.metadata.ledger import Ledger
from torchsan.checks.metadata.render import render_call
from torchsan.checks.metadata.reports import mismatch_report
from torchsan.checks.metadata.samples import Sample, generated_samples
from torchsan.recording import Memory
from torchsan.records import Finding, Severity, Stage

__all__ = ["Result", "check_operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found out about an operator. `ways` maps a way of running it to `ok`, findings in short, or why not."""

    operator: str
    samples: int
    ways: dict[str, str]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[str, ...] = field(default=())

    @property
    def status(self) -> str:
        """`error`, `warning` or `note` if there is one, `ok` if not, `not checked` if no call worked."""
        for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
            if any(f.severity is severity for f in self.findings):
                return str(severity)
        return "ok" if self.samples else "not checked"


def check_operator(overload: Any, given: Iterable[Sample] | None = None, *, compiled: bool = True) -> Result:
    """Check an operator on the samples given, or on generated ones that it takes."""
    samples = list(given) if given is not None else [s for _, s in generated_samples(overload)]
    usable, why = _usable(overload, samples)
    if not usable:
        return Result(operator=str(overload), samples=0, ways={}, skipped=(why,))
    ways: dict[str, str] = {}
    findings: list[Finding] = []
    skipped: list[str] = []
    attempts: dict[str, Callable[[], None]] = {
        "eager": lambda: _each(usable, overload),
        "functionalized": lambda: _each(usable, _functionalized(overload)),
    }
    if compiled:
        attempts["compiled"] = lambda: _compiled(overload, *_fresh(usable[0]))
    for way, attempt in attempts.items():
        new, missed, failure = _under_crossref(overload, attempt)
        known = {(f.kind, str(f.evidence["differences"])) for f in findings}
        findings += [f for f in new if (f.kind, str(f.evidence["differences"])) not in known]
        skipped += missed
        ways[way] = ", ".join(sorted({str(f.kind) for f in new})) or (failure if failure else "ok")
    ways["decomposition"] = _decomposition(overload, usable, findings)
    return Result(
        operator=str(overload),
        samples=len(usable),
        ways=ways,
        findings=tuple(findings),
        skipped=tuple(dict.fromkeys(skipped)),
    )


def _usable(overload: Any, samples: list[Sample]) -> tuple[list[Sample], str]:
    """The samples that the operator takes, and what it said to the others."""
    usable, why = [], "no sample could be made from its schema"
    for sample in samples:
        args, kwargs = _fresh(sample)
        try:
            overload(*args, **kwargs)
            usable.append(sample)
        except Exception as e:  # noqa: BLE001  # what an operator does not take, it may refuse as it likes
            why = f"it takes no sample that could be made; the last failed with {type(e).__name__}: {e}"[:200]
    return usable, why


def _under_crossref(overload: Any, attempt: Callable[[], None]) -> tuple[list[Finding], list[str], str]:
    failure = ""
    with crossref() as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attempt()
        except Exception as e:  # noqa: BLE001  # that a way fails is what is to be said of it
            failure = f"failed: {type(e).__name__}: {str(e).splitlines()[0][:100] if str(e) else ''}"
    name = str(overload)
    missed = [f"{s.what}: {s.reason}" for s in run.coverage.skipped if name in s.what]
    return [f for f in run.findings if name in f.ops], missed, failure


def _each(samples: list[Sample], call: Callable[..., Any]) -> None:
    for sample in samples:
        args, kwargs = _fresh(sample)
        call(*args, **kwargs)


def _functionalized(overload: Any) -> Callable[..., Any]:
    def functionalized(*args: Any, **kwargs: Any) -> Any:
        flat, tree = pytree.tree_flatten((args, kwargs))
        tensors = [v for v in flat if isinstance(v, torch.Tensor)]

        def call(*inner: torch.Tensor) -> Any:
            rest = iter(inner)
            a, k = pytree.tree_unflatten([next(rest) if isinstance(v, torch.Tensor) else v for v in flat], tree)
            return overload(*a, **k)

        return torch.func.functionalize(call)(*tensors)

    return functionalized


def _compiled(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def call(*a: Any, **k: Any) -> Any:
        return overload(*a, **k)

    torch.compile(call)(*args, **kwargs)


def _decomposition(overload: Any, samples: list[Sample], findings: list[Finding]) -> str:
    outcome = "none"
    for sample in samples:
        args, kwargs = _fresh(sample)
        found = check_decomposition(overload, args, kwargs)
        if found is None:
            continue
        outcome = "ok" if outcome == "none" else outcome
        if found:
            memory = Memory()
            call = render_call(overload, args, kwargs)
            Ledger(memory).report(mismatch_report(overload, Stage.AOT, "decomposition", found, call))
            findings += memory.findings
            return str(memory.findings[0].kind)
    return outcome


def _fresh(sample: Sample) -> Sample:
    """The same arguments in memory of their own, so that one way of running cannot disturb the next."""
    fresh: Sample = private_copy(sample)
    return fresh
