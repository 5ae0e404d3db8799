"""`torchsan.check_call(fn, *args)`: the eager Python function itself against its compiled self."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchsan.errors import FindingsError
from torchsan.records import Coverage, Finding, Severity
from torchsan.report import render_findings
from torchsan.report.tables import count
from torchsan.session import session

if TYPE_CHECKING:
    from collections.abc import Callable


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
        errors = [f for f in self.findings if f.severity is Severity.ERROR]
        if errors:
            found = f"torchsan: {count(len(errors), 'error')} in this call"
            raise FindingsError(f"{found}\n\n{render_findings(errors)}\n", slug="findings")


def check_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> CallReport:
    """Call `fn` eagerly and compiled, and compare: outputs, arguments it changed, module buffers, gradients.

    For a function that is safe to run twice. The eager function is the top of the ladder: a difference that no later
    stage made is of stage `capture`. The arguments and the module are left as they were: both calls get copies.
    A session of its own is opened, with the checks `values` and `stages`; raise SessionError if one is open.
    """
    from torchsan.checks.stages.capture import Eager

    eager = Eager(fn, args, kwargs)
    with session(check=("values", "stages")) as run:
        result, compiled = eager.compiled()
    findings = run.findings
    if not any(f.severity is Severity.ERROR for f in findings):
        findings += eager.judge(compiled)
    return CallReport(findings=findings, coverage=run.coverage, result=result)
