"""What a package returned, judged by the exported program's own graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchsan.aoti.convert import saved_tensor
from torchsan.aoti.log import Launched, Seen, read_description, read_launches
from torchsan.aoti.process import constants_of
from torchsan.checks.exhibits import Build
from torchsan.checks.values.findings import pattern_of
from torchsan.checks.values.plan import plan
from torchsan.checks.values.watch import ValuesWatch
from torchsan.errors import RecordingError
from torchsan.graphs.codec import Graph, rebuild_graph
from torchsan.recording import Writer
from torchsan.records import Check, Finding, GraphRecord, Kind, Severity, Stage, decode
from torchsan.reference.arithmetic import Arithmetic
from torchsan.reference.judge import Outcome, Unlike, settle
from torchsan.reference.replay import Replayer
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.fakes import bind_symbols
from torchsan.torch_internals.wrapper.cpp import read_wrapper
from torchsan.torch_internals.wrapper.model import Launch, Program
from torchsan.watch.observer import CompiledProgram
from torchsan.watch.provenance import buffers_of_launches, operator_name, source_lines

if TYPE_CHECKING:
    from torch.export import ExportedProgram

log = logging.getLogger(__name__)


class Outputs:
    """Judges the outputs of one call."""

    def __init__(self, program: ExportedProgram, inputs: Sequence[Any], writer: Writer) -> None:
        self._writer = writer
        self._graph = program.graph
        self._specs = program.graph_signature.output_specs
        placeholders = [n for n in self._graph.nodes if n.op == "placeholder"]
        values = list(_placeholder_values(program, inputs))
        known = dict(zip(placeholders, values, strict=True))
        self._replayer = Replayer(known, attribute=_no_attribute, symbols=bind_symbols(self._graph, values))

    def check(self, actual: Sequence[Any], *, blamed: bool) -> None:
        """Record a finding for each output that is not what it should be; a note if its kernel is known already."""
        results = next(n for n in self._graph.nodes if n.op == "output").args[0]
        nodes = [n for n, spec in zip(results, self._specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        if len(nodes) != len(actual):
            self._writer.skipped("the outputs", f"the package returns {len(actual)} values, the program {len(nodes)}")
            return
        for i, (node, value) in enumerate(zip(nodes, actual, strict=True)):
            if isinstance(node, torch.fx.Node) and isinstance(value, torch.Tensor):
                self._output(i, node, value, blamed)

    def _output(self, i: int, node: torch.fx.Node, actual: torch.Tensor, blamed: bool) -> None:
        def run(arithmetic: Arithmetic, *, seed: int = 0) -> torch.Tensor:
            return torch.as_tensor(self._replayer.run(node, arithmetic, seed=seed))

        try:
            judgement = settle(run, actual)
            if judgement.outcome in (Outcome.WRONG, Outcome.NON_FINITE) and judgement.bad is not None:
                at = tuple(judgement.bad.nonzero()[0].tolist())
                count, total = int(judgement.bad.sum()), actual.numel()
                evidence = {
                    "elements": total,
                    "bad": count,
                    "pattern": pattern_of(judgement.bad),
                    "first_bad": list(at),
                    "compiled": actual[at].item(),
                    "eager": judgement.eager[at].item(),
                }
                evidence["text"] = [f"at {list(at)}: package {evidence['compiled']}, eager {evidence['eager']}"]
                message = f"output {i} of the package has wrong values in {count} of {total} elements"
                self._report(node, Kind.WRONG_VALUES, message, evidence, blamed)
        except Unlike as e:
            message = f"output {i} is {_kind(actual)} in the package and {_kind(e.eager)} in eager"
            self._report(node, Kind.METADATA_MISMATCH, message, {}, blamed)
        except Exception as e:  # an operator that cannot run here ends the check of this output, no more
            log.debug("cannot judge output %s", i, exc_info=True)
            self._writer.skipped(f"output {i}", f"cannot be computed again: {type(e).__name__}: {e!s:.200}")

    def _report(self, node: torch.fx.Node, kind: Kind, message: str, evidence: dict[str, Any], blamed: bool) -> None:
        name = operator_name(node)
        self._writer.finding(
            Finding(
                kind=kind,
                # What follows from a kernel that was named is no error of its own.
                severity=Severity.NOTE if blamed else Severity.ERROR,
                check=Check.VALUES,
                stage=Stage.KERNEL,
                nodes=(node.name,),
                ops=(name,) if name else (),
                source=source_lines([node]),
                message=message,
                evidence=evidence,
            )
        )


def _placeholder_values(program: ExportedProgram, inputs: Sequence[Any]) -> Iterator[Any]:
    """What each placeholder of the exported graph stands for."""
    given = iter(inputs)
    named = constants_of(program)
    for spec in program.graph_signature.input_specs:
        yield next(given) if spec.kind.name == "USER_INPUT" else named.get(str(spec.target))


def _no_attribute(name: str) -> Any:
    raise RuntimeError(f"the exported graph has a constant of its own, {name}")


def _kind(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


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
