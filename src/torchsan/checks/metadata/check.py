"""The metadata check: what operators say of themselves (fake kernel, schema) against what they do.

Importing it imports no torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchsan.watch.observer import CallWatch, CompiledProgram, Observer
from torchsan.watch.operators import OperatorCall, OperatorObserver, Remember

if TYPE_CHECKING:
    from torchsan.checks.collector import Collector
    from torchsan.checks.metadata.eager import EagerJudge
    from torchsan.checks.metadata.findings import OperatorFindings
    from torchsan.checks.metadata.plan import Fallback
    from torchsan.records import GraphId


class MetadataCheck(Observer, OperatorObserver):
    """Looks at operators in eager code, and at the operators, nodes and edges of compiled programs."""

    name = "metadata check"

    def __init__(self, collector: Collector, calls: int | None) -> None:
        """`calls` is how many calls of each compiled program are looked at; None for all."""
        self._collector = collector
        self._recorder = collector.recorder
        self._calls = calls
        self._programs: dict[int, tuple[dict[int, Fallback], set[str]]] = {}
        self._misled: set[GraphId] = set()

    @cached_property
    def _findings(self) -> OperatorFindings:
        from torchsan.checks.metadata.findings import OperatorFindings

        return OperatorFindings(self._collector)

    @cached_property
    def _judge(self) -> EagerJudge:
        from torchsan.checks.metadata.eager import EagerJudge

        return EagerJudge(self._findings, self._recorder)

    def wants(self, overload: Any) -> bool:
        return self._judge.wants(overload)

    def before(self, call: OperatorCall) -> Any:
        return self._judge.before(call)

    def after(self, call: OperatorCall, before: Any, result: Any) -> Remember:
        return self._judge.after(call, before, result)

    def failed(self, call: OperatorCall, error: Exception) -> None:
        self._recorder.skipped(str(call.overload), f"torchsan failed: {type(error).__name__}: {error}"[:300])

    def not_covered(self, what: str, reason: str) -> None:
        self._recorder.skipped(what, reason)

    def closed(self) -> None:
        if "_judge" in vars(self):  # Otherwise no operator was called.
            self._judge.close()

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.metadata.plan import fallbacks

        self._programs[id(program)] = (fallbacks(program), set())

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.metadata.watch import MetadataWatch

        if self._calls is not None and call >= self._calls:
            return None
        known, walked = self._programs[id(program)]
        return MetadataWatch(self._findings, self._recorder, self._judge, program, known, walked, self._misled)
