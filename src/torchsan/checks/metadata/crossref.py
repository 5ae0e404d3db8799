"""`torchsan.crossref()`: the metadata check alone, without a recording."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from torchsan.checks.collector import Collector, raise_error
from torchsan.checks.metadata.check import MetadataCheck
from torchsan.errors import FindingsError, SessionError
from torchsan.recording import Recorder
from torchsan.records import Coverage, Finding, Severity
from torchsan.torch_internals import check_version
from torchsan.watch import observe_seams
from torchsan.watch.compiled import observe_programs
from torchsan.watch.operators import observe_operators


class CrossReference:
    """Watches the operators of this process while it is entered; what it found stays on the object."""

    def __init__(self, *, fail_fast: bool, calls: int | None) -> None:
        self._memory = Recorder()
        self._collector = Collector(self._memory, on_error=raise_error if fail_fast else None)
        self._check: MetadataCheck | None = MetadataCheck(self._collector, calls)
        self._stack = ExitStack()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far, one an operator and kind, in the order they were first made."""
        return self._memory.findings

    @property
    def coverage(self) -> Coverage:
        """What was looked at so far, and what was not and why."""
        return self._memory.coverage

    @staticmethod
    def loaded_overloads() -> tuple[str, ...]:
        """The operator overloads loaded in this process: those that are looked at when they are functionalised."""
        from torchsan.torch_internals.operators import loaded_overloads

        return tuple(sorted(str(overload) for overload in loaded_overloads()))

    def raise_if_findings(self) -> None:
        """Raise FindingsError, with the findings as its text, if there is one of severity `error`."""
        errors = [f for f in self.findings if f.severity is Severity.ERROR]
        if errors:
            lines = [
                f"{f.id}: {f.kind}: {f.message}\n    {f.evidence['call']}\n    {f.evidence['fix']}" for f in errors
            ]
            raise FindingsError("operators are not what they say:\n" + "\n".join(lines) + "\n", slug="findings")

    def __enter__(self) -> CrossReference:
        check, self._check = self._check, None
        if check is None:
            raise SessionError("this crossref() was used already; make a new one", slug="nested-session")
        check_version()
        with ExitStack() as stack:
            stack.enter_context(observe_seams(self._memory, ("metadata",)))
            stack.enter_context(observe_programs(self._memory, (check, self._collector)))
            stack.enter_context(observe_operators(check))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


def crossref(*, fail_fast: bool = False, calls: int | None = 2) -> CrossReference:
    """Return a context manager that checks every operator call: for real, against its fake kernel and its schema.

    Eager code, `torch.func.functionalize` and what `torch.compile` makes of code inside. `calls` is how many calls of
    each compiled graph are looked at, None for all. With `fail_fast` the first error raises FindingsError where it
    happens; otherwise all are collected.
    """
    return CrossReference(fail_fast=fail_fast, calls=calls)
