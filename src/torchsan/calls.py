"""Checks of single functions and operators: `torchsan.check_call(fn, *args)` and `torchsan.crossref()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsan.options import Options
from torchsan.recording import Recorder
from torchsan.records import Check, Coverage, Finding, Severity
from torchsan.report.findings import findings_text, raise_errors
from torchsan.session import Scope, Session, session


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """What was found about one call; truthy when nothing is wrong. `result` is what the compiled function returned."""

    findings: tuple[Finding, ...]
    coverage: Coverage
    result: Any = field(repr=False)

    def __bool__(self) -> bool:
        return not any(f.severity is Severity.ERROR for f in self.findings)

    def raise_if_findings(self) -> None:
        """Raise FindingsError, with the findings as its text, if there is one of severity `error`."""
        raise_errors(self.findings, lambda errors: f"{findings_text(errors, 'error', 'in this call')}\n")


def check_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> CallReport:
    """Call `fn` eagerly and compiled, and compare: outputs, arguments it changed, module buffers, gradients.

    For a function that is safe to run twice. The eager function is what Dynamo captured the first graph from: a
    difference that no later stage made is of stage `capture`. The arguments and the module are left as they were: both
    calls get copies. A session of its own is opened, with the checks `values` and `stages`; raise SessionError if one
    is open.

    >>> torchsan.check_call(torch.relu, torch.randn(8)).raise_if_findings()
    """
    from torchsan.checks.stages.capture import Eager

    eager = Eager(fn, args, kwargs)
    with session(check=("values", "stages")) as run:
        result, compiled = eager.compiled()
    findings = run.findings
    if not any(f.severity is Severity.ERROR for f in findings):
        findings += eager.judge(compiled)
    return CallReport(findings=findings, coverage=run.coverage, result=result)


class CrossReference(Session):
    """A session with the check `metadata` alone, which records in memory and may stand inside another session."""

    _called = "crossref()"

    def __init__(self, *, fail_fast: bool, calls: int | None) -> None:
        options = Options(check=(Check.METADATA,), calls=calls, fail_fast=fail_fast)
        super().__init__(options, recorder=Recorder(), scope=Scope.BESIDE)

    @staticmethod
    def loaded_overloads() -> tuple[str, ...]:
        """The operator overloads loaded in this process: those that are looked at when they are functionalised."""
        from torchsan.torch_internals.operators import loaded_overloads

        return tuple(sorted(str(overload) for overload in loaded_overloads()))

    def _text(self, errors: Sequence[Finding]) -> str:
        lines = [f"{f.id}: {f.kind}: {f.message}\n    {f.evidence['call']}\n    {f.evidence['fix']}\n" for f in errors]
        return f"operators are not what they say:\n{''.join(lines)}"


def crossref(*, fail_fast: bool = False, calls: int | None = 2) -> CrossReference:
    """Return a context manager that checks every operator call: for real, against its fake kernel and its schema.

    Eager code, `torch.func.functionalize` and what `torch.compile` makes of code inside. `calls` is how many calls of
    each compiled graph are looked at, None for all. With `fail_fast` the first error raises FindingsError where it
    happens; otherwise all are collected.

    >>> with torchsan.crossref() as run:
    ...     y = torch.relu(torch.randn(8))
    >>> run.raise_if_findings()
    """
    return CrossReference(fail_fast=fail_fast, calls=calls)
