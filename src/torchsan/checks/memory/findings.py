"""From what was seen in a call to findings: each (program, kind, launch, buffer) once."""

from __future__ import annotations

from functools import partial
from typing import Any

from torchsan.checks.collector import Collector
from torchsan.checks.memory.exhibit import CallInputs, exhibit_of_call
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.records import Check, Finding, Kind, Severity, SourceLine, Stage
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CompiledProgram


class CallFindings:
    """Reports what is wrong in one call of a program."""

    def __init__(self, collector: Collector, program: CompiledProgram, plan: MemoryPlan, given: CallInputs) -> None:
        self._collector = collector
        self._program = program
        self._plan = plan
        self._given = given

    def report(
        self,
        kind: Kind,
        message: str,
        *,
        buffer: str,
        launch: Launch | None = None,
        severity: Severity = Severity.ERROR,
        source: tuple[SourceLine, ...] = (),
        evidence: dict[str, Any] | None = None,
    ) -> None:
        """Report something about a buffer; `launch` is the one to blame. Without a `source` it is the launch's."""
        kernel = self._plan.kernels.get(launch.nth) if launch is not None else None
        own = self._plan.sources.get(("call", buffer))
        finding = Finding(
            kind=kind,
            severity=severity,
            check=Check.MEMORY,
            stage=Stage.KERNEL,
            graph=self._program.ref,
            kernel=launch.kernel if launch is not None else None,
            buffer=buffer,
            nodes=kernel.nodes if kernel is not None else (),
            ops=kernel.ops if kernel is not None else (),
            source=source or (kernel.source if kernel is not None else (own,) if own is not None else ()),
            message=message,
            evidence={**(evidence or {}), **({} if launch is None else self._where(launch))},
        )
        key = (self._plan.serial, kind, severity, launch.nth if launch is not None else None, buffer)
        self._collector.add(key, finding, partial(exhibit_of_call, self._program, self._given), self._program)

    def _where(self, launch: Launch) -> dict[str, Any]:
        return {"launch": launch.nth, **self._program.configuration(launch)}

    def kernel_source(self, launch: Launch) -> dict[str, str]:
        """Keep the source of a generated kernel in the recording, once, and return the evidence that says where."""
        kernel = self._program.model.kernels.get(launch.kernel)
        if kernel is None or not kernel.source:
            return {}
        kept = self._plan.learnt.sources
        if kernel.name not in kept:
            suffix = {"cpp": "cpp", "triton": "py", "triton-user": "py"}.get(kernel.language, "txt")
            # Names of artifacts are cut off at 100 characters, and the suffix should not be.
            kept[kernel.name] = self._collector.recorder.artifact(f"{kernel.name[:90]}.{suffix}", kernel.source)
        return {"kernel source": kept[kernel.name]}


def elements(count: int) -> str:
    """`1 element`, `2 elements`."""
    return f"{count} element{'s' if count > 1 else ''}"
