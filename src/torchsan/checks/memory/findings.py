"""From what was seen to findings: each kind with its words and its evidence, each (kind, kernel, buffer) once."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from torchsan.checks.exhibits import Exhibits
from torchsan.checks.memory.exhibit import CallInputs, exhibit_of_call
from torchsan.checks.memory.guards import Damage
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.checks.memory.storages import Block
from torchsan.errors import FindingsError
from torchsan.recording import Writer
from torchsan.records import Check, Finding, Kind, Severity, SourceLine, Stage
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CompiledProgram


class Reporter:
    """Writes the findings of a whole session, from any thread. With `fail_fast` an error is raised as well."""

    def __init__(self, writer: Writer, fail_fast: bool, exhibits: Exhibits) -> None:
        self._writer = writer
        self._exhibits = exhibits
        self._fail_fast = fail_fast
        self.overflowing: set[int] = set()
        """The programs, by the serial number of their plan, that wrote out of bounds."""
        self._said: set[tuple[Any, ...]] = set()
        self._sources: dict[tuple[int, str], str] = {}
        self._lock = threading.Lock()

    def report(
        self,
        program: CompiledProgram,
        plan: MemoryPlan,
        given: CallInputs,
        kind: Kind,
        severity: Severity,
        message: str,
        *,
        buffer: str,
        launch: Launch | None = None,
        source: tuple[SourceLine, ...] = (),
        evidence: dict[str, Any] | None = None,
    ) -> bool:
        """Report a finding, unless it was reported before. Return whether it is new."""
        key = (plan.serial, kind, severity, launch.nth if launch else None, buffer)
        with self._lock:
            if key in self._said:
                return False
            self._said.add(key)
        kernel = plan.kernels.get(launch.nth) if launch is not None else None
        own = plan.sources.get(("call", buffer))
        finding = self._writer.finding(
            Finding(
                kind=kind,
                severity=severity,
                check=Check.MEMORY,
                stage=Stage.KERNEL,
                graph=program.ref,
                kernel=launch.kernel if launch is not None else None,
                buffer=buffer,
                nodes=kernel.nodes if kernel is not None else (),
                ops=kernel.ops if kernel is not None else (),
                source=source or (kernel.source if kernel is not None else (own,) if own is not None else ()),
                message=message,
                evidence={**(evidence or {}), **({"launch": launch.nth} if launch is not None else {})},
            )
        )
        self._exhibits.keep(finding, partial(exhibit_of_call, program, given), program)
        if self._fail_fast and severity is Severity.ERROR:
            where = "".join(f"\n    at {line.file}:{line.line}" for line in finding.source)
            raise FindingsError(f"torchsan: {finding.id}: {kind}: {message}{where}", slug="findings")
        return True

    def out_of_bounds(
        self,
        program: CompiledProgram,
        plan: MemoryPlan,
        given: CallInputs,
        launch: Launch,
        block: Block,
        name: str,
        damage: Damage,
    ) -> None:
        """A launch wrote into the guard zones of a buffer that it was given."""
        self.overflowing.add(plan.serial)
        size = block.dtype.itemsize
        parts, evidence = [], {"elements": block.nbytes // size, "dtype": str(block.dtype).removeprefix("torch.")}
        for side, stored, farthest in (
            ("before the start", damage.before, damage.farthest_before),
            ("after the end", damage.after, damage.farthest_after),
        ):
            if stored:
                count = -(-stored // size)
                parts.append(f"{count} element{'s' if count > 1 else ''} {side}")
                evidence[f"elements {side}"] = count
                evidence[f"farthest byte {side}"] = farthest
        self.report(
            program,
            plan,
            given,
            Kind.OUT_OF_BOUNDS_WRITE,
            Severity.ERROR,
            f"{launch.kernel} writes {' and '.join(parts)} of {name}",
            buffer=name,
            launch=launch,
            evidence={**evidence, **self._kernel_source(program, plan, launch)},
        )

    def _kernel_source(self, program: CompiledProgram, plan: MemoryPlan, launch: Launch) -> dict[str, str]:
        """Keep the source of a generated kernel in the recording, once, and say where."""
        kernel = program.model.kernels.get(launch.kernel)
        if kernel is None or not kernel.source:
            return {}
        suffix = {"cpp": "cpp", "triton": "py"}.get(kernel.language, "txt")
        key = (plan.serial, kernel.name)
        if key not in self._sources:
            # Names of artifacts are cut off at 100 characters, and the suffix should not be.
            self._sources[key] = self._writer.artifact(f"{kernel.name[:90]}.{suffix}", kernel.source)
        return {"kernel source": self._sources[key]}
