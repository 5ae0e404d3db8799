"""The stages check: which step of the compiler changed the meaning of the program. Importing it imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from torchsan.errors import in_one_line
from torchsan.options import Calls
from torchsan.records import Check, Direction, GraphRef, Kind, Severity, Stage
from torchsan.torch_internals.compile_stages import observe_compile_stages
from torchsan.torch_internals.compiled_calls import observe_compiled_calls
from torchsan.watch.compiled import graph_record
from torchsan.watch.observer import CompiledProgram, Observer, not_checked
from torchsan.watch.pace import Attention, Pace

if TYPE_CHECKING:
    import torch.fx

    from torchsan.checks.collector import Build, Collector
    from torchsan.checks.stages.captured import CallUnderWay
    from torchsan.checks.stages.referee import CaptureReferee
    from torchsan.checks.stages.storages import Reordered
    from torchsan.records import Finding
    from torchsan.torch_internals.compile_stages import CompileStages
    from torchsan.torch_internals.compiled_calls import CallWatcher


class StagesCheck(Observer):
    """Checks the first calls of each graph of Dynamo's, and each call whose inputs look like none before."""

    name = "stages check"

    def __init__(self, collector: Collector, calls: Calls, *, kernels_elsewhere: bool) -> None:
        """`calls` is how many calls are checked; None for all. `kernels_elsewhere`: the values check runs as well."""
        self._collector = collector
        self._writer = collector.recorder
        self._calls = calls
        self._kernels_elsewhere = kernels_elsewhere
        self._numbers = itertools.count()
        self._refs: dict[int, dict[Direction, GraphRef]] = {}
        self._kernels: dict[GraphRef, dict[str, str]] = {}
        """The kernels that compute the nodes of each graph."""
        self._launches: dict[int, dict[Direction, tuple[Reordered, ...]]] = {}
        self._referee: CaptureReferee | None = None
        self._pace = Pace()

    @cached_property
    def _call(self) -> CallUnderWay:
        from torchsan.checks.stages.captured import CallUnderWay

        return CallUnderWay()

    @contextmanager
    def attached(self) -> Iterator[None]:
        with (
            observe_compile_stages(self._built, self._failed),
            observe_compiled_calls(self._watcher, self._failed),
        ):
            yield

    def _watcher(self, fn: Callable[..., Any], compiled: Callable[..., Any]) -> CallWatcher:
        from torchsan.checks.stages.referee import CaptureReferee

        if self._referee is None:
            self._referee = CaptureReferee(
                self._calls,
                self._pace,
                report=self._report_captured,
                skipped=self._writer.skipped,
                errors=lambda: len(self._errors_of_later_stages()),
                blamed=self._blames_later_stages,
                flip=lambda: self._flip(lambda f: True),
                call=self._call,
            )
        return self._referee.watcher(fn, compiled)

    def compile(self, backend: str, gm: torch.fx.GraphModule, compile_: Callable[[], Any]) -> Callable[..., Any]:
        """Look at one compile of Dynamo's graph `gm`, which was begun before this was attached."""
        from torchsan.torch_internals.compile_stages import CompileStages, compile_observed

        return compile_observed(CompileStages(backend), gm, compile_, self._built, self._failed)

    def compiled(self, program: CompiledProgram) -> None:
        from torchsan.checks.stages.artifacts import keep_stage_graphs
        from torchsan.checks.stages.launch_order import launch_order
        from torchsan.torch_internals.compile_stages import current_stages

        ladder = current_stages()
        if ladder is not None:
            keep_stage_graphs(self._writer, ladder, program)
            self._refs.setdefault(id(ladder), {})[program.ref.direction] = program.ref
            names = {node: kernel.name for kernel in program.record.kernels for node in kernel.nodes}
            self._kernels[program.ref] = names
            launches = self._launches.setdefault(id(ladder), {})
            try:
                launches[program.ref.direction] = launch_order(program)
            except Exception as e:  # noqa: BLE001  # a check that fails ends the check, never the user's job
                self._failed(e)

    def _built(self, ladder: CompileStages) -> None:
        from torchsan.checks.stages.plan import writes_attributes
        from torchsan.checks.stages.watch import StagesWatch

        refs = self._refs.setdefault(id(ladder), {})
        inductor = bool(refs)
        if not inductor:
            self._record(ladder, refs)
        label = next((f"graph {r.id}" for r in refs.values()), "a graph")
        captured = ladder.dynamo.snapshots[0]
        if writes_attributes(captured.graph, captured.attributes):
            # Its tensors are the program's own: to run it again would be to take the step of an optimizer twice.
            self._writer.skipped(
                f"stages of {label}",
                "not run again: it updates tensors that are not its inputs, as the step of an optimizer does",
            )
            return

        def checked(direction: Direction, names: list[str]) -> None:
            if not inductor:
                for ref in refs.values():
                    self._writer.checked(ref.id, ref.direction, names, Check.STAGES)

        number = next(self._numbers)

        def report(finding: Finding, build: Build) -> None:
            """Record a finding, once for each step of this compile; a note does not stand for an error."""
            noted = finding.severity is Severity.NOTE
            self._collector.add((number, finding.stage, finding.pass_, noted), finding, build)

        ladder.watch = StagesWatch(
            ladder,
            Attention(self._calls, self._pace),
            refs=refs,
            report=report,
            skipped=lambda reason: self._writer.skipped(f"stages of {label}", reason),
            checked=checked,
            kernels_elsewhere=self._kernels_elsewhere and inductor,
            blamed=lambda: self._blames_kernel(refs),
            kernel_of=self._kernel_of,
            flip=lambda: self._flip(lambda f: f.graph in refs.values()),
            launches=self._launches.setdefault(id(ladder), {}),
            flight=self._writer.flight,
            unchecked=partial(not_checked, self._writer, f"stages of {label}"),
            call=self._call,
        )

    def _report_captured(self, finding: Finding) -> None:
        """Report a difference to the program's Python, unless a step that loses precision shows the very numbers."""
        from torchsan.checks.stages.referee import no_exhibit

        lost = [f for f in self._writer.findings if (f.kind, f.check) == (Kind.PRECISION_LOSS, Check.STAGES)]
        numbers = _numbers(finding)
        if not any(numbers) or all(_numbers(f) != numbers for f in lost):
            self._collector.add((next(self._numbers), "python"), finding, no_exhibit)

    def _errors_of_later_stages(self) -> list[Finding]:
        return [f for f in self._writer.findings if f.severity is Severity.ERROR and f.stage is not Stage.CAPTURE]

    def _blames_later_stages(self, ran: tuple[CompileStages, ...]) -> bool:
        """Whether a later stage of one of these graphs has an error, of this compile of it or of another."""
        graphs = {ref for stages in ran for ref in self._refs.get(id(stages), {}).values()}
        return any(f.graph in graphs for f in self._errors_of_later_stages())

    def _flip(self, suits: Callable[[Finding], bool]) -> Finding | None:
        """The last note of a choice that rounding decides."""
        return next((f for f in reversed(self._writer.findings) if "flip" in f.evidence and suits(f)), None)

    def _kernel_of(self, ref: GraphRef | None, node: str) -> str | None:
        return self._kernels.get(ref, {}).get(node) if ref is not None else None

    def _blames_kernel(self, refs: dict[Direction, GraphRef]) -> str | None:
        """The error that was found in a kernel of these graphs, or in a cache: it names more than this could."""
        found = (
            f.id
            for f in self._writer.findings
            if f.severity is Severity.ERROR
            and (f.stage is Stage.CACHE or (f.stage is Stage.KERNEL and f.graph in refs.values()))
        )
        return next(found, None)

    def _record(self, ladder: CompileStages, refs: dict[Direction, GraphRef]) -> None:
        """A graph of another backend than Inductor is a graph of the run too."""
        record = graph_record(self._writer, ladder)
        self._writer.graph(record)
        refs[record.direction] = GraphRef(id=record.id, direction=record.direction)

    def _failed(self, error: Exception) -> None:
        not_checked(self._writer, "the stages of a compile", f"could not be observed: {in_one_line(error)}")


def _numbers(finding: Finding) -> list[Any]:
    return [finding.evidence.get(name) for name in ("first_bad", "shape", "compiled", "eager")]
