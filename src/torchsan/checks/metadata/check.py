"""The metadata check: what operators say of themselves (fake kernel, schema) against what they do.

Importing it imports no torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchsan.options import Calls, calls_until, selects_call
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer
from torchsan.watch.operators import OperatorCall, OperatorObserver, Remember

if TYPE_CHECKING:
    from torchsan.checks.collector import Collector
    from torchsan.checks.metadata.eager import EagerJudge
    from torchsan.checks.metadata.plan import MetadataPlan
    from torchsan.records import GraphId


class MetadataCheck(Observer, OperatorObserver):
    """Looks at operators in eager code, and at the operators, nodes and edges of compiled programs."""

    name = "metadata check"

    def __init__(self, collector: Collector, calls: Calls) -> None:
        """`calls` is how many calls of each compiled program are looked at; None for all."""
        self._collector = collector
        self._recorder = collector.recorder
        self._calls = calls
        self._plans: dict[int, MetadataPlan] = {}
        self._misled: set[GraphId] = set()

    @cached_property
    def _judge(self) -> EagerJudge:
        from torchsan.checks.metadata.eager import EagerJudge
        from torchsan.checks.metadata.findings import OperatorFindings

        return EagerJudge(OperatorFindings(self._collector))

    def prepare(self) -> None:
        _ = self._judge

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
        if "_judge" in vars(self):  # Otherwise torch was not imported.
            self._judge.close()

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.metadata.plan import plan

        self._plans[id(program)] = plan(program)

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.metadata.watch import MetadataWatch

        if not selects_call(self._calls, call):
            return None
        return MetadataWatch(self._judge, program, self._plans[id(program)], self._misled)

    def quiet(self, program: CompiledProgram, call: int) -> int:
        return calls_until(self._calls, call)
