"""Each launch that a package recorded with its tensors, judged as the values check does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan.checks.exhibits import Build
from torchsan.checks.values.check import ValuesWatch
from torchsan.checks.values.plan import plan
from torchsan.errors import RecordingError
from torchsan.instruments.observer import CompiledProgram
from torchsan.instruments.program.model import Launch, Program
from torchsan.instruments.provenance import buffers_of_launches
from torchsan.packages.convert import saved_tensor
from torchsan.packages.graphs import Graph, rebuild_graph
from torchsan.packages.inputs import constants_of
from torchsan.packages.log import Launched, Seen, read_description, read_launches
from torchsan.packages.wrapper import read_wrapper
from torchsan.recording import Writer
from torchsan.records import Finding, GraphRecord, Severity, decode
from torchsan.torch_internals import Buffer, LoweredGraph

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["Launches"]


class Launches:
    """The launches of the first call that a file holds."""

    def __init__(self, program: ExportedProgram, writer: Writer, file: Path) -> None:
        self._exported = program
        self._writer = writer
        self._file = file
        self._described = read_description(file)
        self._found: set[str] = set()

    def check(self) -> set[str]:
        """Record what is wrong; return the kernels that are."""
        how = self._described.get("replay")
        record = decode(GraphRecord, self._described.get("graph"))
        self._writer.graph(record)
        if not isinstance(how, dict) or "graph" not in how:
            reason = how.get("reason") if isinstance(how, dict) else "it was built without what a replay needs"
            self._writer.skipped("the launches of the package", f"cannot be computed again: {reason!s:.200}")
            return self._found
        if self._described.get("watch") != "save":
            reason = (
                f"the package records {self._described.get('watch')!s:.10}, not tensors: build it with watch='save'"
            )
            self._writer.skipped("the launches of the package", reason)
            return self._found
        try:
            program = self._program(how, record)
        except RecordingError as e:  # of an operator that is not there, say; the outputs can be judged all the same
            self._writer.skipped("the launches of the package", f"cannot be computed again: {e!s:.200}")
            return self._found
        watch = ValuesWatch(self._writer, program, plan(program), self._report, probes=False)
        for step in self._steps(program):
            step(watch)
        watch.close(None)
        return self._found

    def _report(self, program: CompiledProgram, finding: Finding, build: Build) -> None:
        self._writer.finding(finding)
        if finding.severity is Severity.ERROR:
            self._found.add(str(finding.kernel))

    def _program(self, how: Mapping[str, Any], record: GraphRecord) -> CompiledProgram:
        wrapper = read_wrapper(str(how["wrapper"]))
        assert wrapper is not None
        function = wrapper.function()
        named = constants_of(self._exported)
        constants = {**{name.replace(".", "_"): value for name, value in named.items()}, **named}
        module = rebuild_graph(decode(Graph, how["graph"]), constants)
        buffers = tuple(decode(Buffer, b) for b in how["buffers"])
        computes = {nth: tuple(found) for nth, found in buffers_of_launches(buffers, function).items()}
        lowered = LoweredGraph(function="call", module=module, inputs=tuple(how["inputs"]), buffers=buffers)
        return CompiledProgram(
            record=record,
            model=Program(kernels={}, functions={"call": function}),
            graphs={"call": lowered},
            computes=computes,
            constants=constants,
        )

    def _steps(self, program: CompiledProgram) -> Iterator[Callable[[ValuesWatch], None]]:
        """What happened in the first call, as the watch is told."""
        launches = {launch.nth: launch for launch in program.model.launches()}
        values: dict[str, Any] = {}
        entered = False
        with self._file.open("rb") as data:
            pending: tuple[Launch, dict[str, Any]] | None = None
            for record in read_launches(self._file):
                if record.call != 0:
                    continue
                match record:
                    case Seen() if record.data is not None:
                        values[record.name] = saved_tensor(record, data)
                    case Launched(phase="before"):
                        if not entered:
                            entered = True
                            inputs = {n: values.get(n) for n in program.graphs["call"].inputs}
                            yield partial(_enter, inputs=inputs)
                        if pending is not None:
                            yield partial(_after, launch=pending[0], values=dict(values))
                            pending = None
                        launch = launches.get(record.site)
                        if launch is not None:
                            pending = (launch, values)
                    case Launched(phase="after") if pending is not None:
                        yield partial(_before, launch=pending[0], values=dict(values))
            if pending is not None:
                yield partial(_after, launch=pending[0], values=dict(values))


def _enter(watch: ValuesWatch, inputs: dict[str, Any]) -> None:
    watch.enter("call", inputs)


def _before(watch: ValuesWatch, launch: Launch, values: dict[str, Any]) -> None:
    watch.before("call", launch, values)


def _after(watch: ValuesWatch, launch: Launch, values: dict[str, Any]) -> None:
    watch.after("call", launch, values)
