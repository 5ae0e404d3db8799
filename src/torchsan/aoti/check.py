"""An AOTInductor package against eager and float64: its outputs, and, where it recorded them, each of its launches."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchsan.aoti.launches import Launched, Seen, launch_files, read_description, read_launches, saved_tensor
from torchsan.aoti.process import constants_of, read_leaves, write_leaves
from torchsan.checks.collector import Build
from torchsan.checks.values.findings import where_bad
from torchsan.checks.values.plan import function_inputs, plan
from torchsan.checks.values.watch import ValuesWatch
from torchsan.errors import RecordingError
from torchsan.graphs.data import Graph
from torchsan.graphs.nodes import operator_name, source_lines
from torchsan.graphs.rebuild import rebuild_graph
from torchsan.recording import Writer
from torchsan.records import Check, Finding, GraphRecord, Kind, Severity, Stage, decode
from torchsan.reference.judge import Outcome, Unlike
from torchsan.reference.replay import Replayer
from torchsan.reference.usual import Usual
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.fakes import bind_symbols
from torchsan.torch_internals.wrapper.cpp import read_wrapper
from torchsan.torch_internals.wrapper.model import Launch, Program
from torchsan.watch.observer import CompiledProgram
from torchsan.watch.provenance import buffers_of_launches

if TYPE_CHECKING:
    from torch.export import ExportedProgram

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to check: the package, the file of the exported program, and the leaves of what to call both with."""

    package: Path
    program_file: Path
    program: ExportedProgram
    inputs: Sequence[Any]
    loads: tuple[str, ...] = ()
    """Modules that register operators; `paths` are the folders where they are looked for."""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the package's process ended: its exit status, or minus the signal. `last` is the launch it died in."""

    status: int
    said: str
    last: str | None


def check_package(request: Request, writer: Writer) -> Result:
    """Run the package once and record what is wrong with it, and what was looked at."""
    with tempfile.TemporaryDirectory(prefix="torchsan-package-") as text:
        folder = Path(text)
        result = _run(request, folder)
        files = launch_files(folder / "out")
        with torch.no_grad():
            wrong = _Launches(request.program, writer, files[-1]).check() if files else set()
            if result.status == 0:
                outputs = _Outputs(request.program, request.inputs, writer, blamed=bool(wrong))
                outputs.check(read_leaves(folder, "outputs"))
        return result


def _run(request: Request, folder: Path) -> Result:
    write_leaves(folder, "inputs", request.inputs)
    wanted = {"package": str(request.package.absolute()), "program": str(request.program_file.absolute())}
    (folder / "request.json").write_text(json.dumps(wanted | {"loads": list(request.loads)}))
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join([source, str(Path.cwd()), *request.paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = os.environ | {"TORCHSAN_OUT": str(folder / "out"), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torchsan.aoti.process", str(folder)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    last = None
    for file in launch_files(folder / "out"):
        for record in read_launches(file):
            if isinstance(record, Launched):
                last = record.kernel if record.phase == "before" else None
    return Result(status=done.returncode, said=done.stdout.decode(errors="replace"), last=last)


@contextmanager
def program_file(content: bytes) -> Iterator[Path]:
    """A file with an exported program that came out of a package."""
    with tempfile.TemporaryDirectory(prefix="torchsan-program-") as folder:
        file = Path(folder) / "program.pt2"
        file.write_bytes(content)
        yield file


class _Outputs:
    """Judges the outputs of one call. If a kernel is `blamed` already, what follows from it is no error of its own."""

    def __init__(self, program: ExportedProgram, inputs: Sequence[Any], writer: Writer, *, blamed: bool) -> None:
        self._writer = writer
        self._graph = program.graph
        self._specs = program.graph_signature.output_specs
        self._severity = Severity.NOTE if blamed else Severity.ERROR
        given, constants = iter(inputs), constants_of(program)
        values = [
            next(given) if spec.kind.name == "USER_INPUT" else constants.get(str(spec.target))
            for spec in program.graph_signature.input_specs
        ]
        placeholders = [n for n in self._graph.nodes if n.op == "placeholder"]
        known = dict(zip(placeholders, values, strict=True))
        self._replayer = Replayer(known, attribute=_no_attribute, symbols=bind_symbols(self._graph, values))

    def check(self, actual: Sequence[Any]) -> None:
        """Record a finding for each output that is not what it should be."""
        results = next(n for n in self._graph.nodes if n.op == "output").args[0]
        nodes = [n for n, spec in zip(results, self._specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        if len(nodes) != len(actual):
            self._writer.skipped("the outputs", f"the package returns {len(actual)} values, the program {len(nodes)}")
            return
        for i, (node, value) in enumerate(zip(nodes, actual, strict=True)):
            if not isinstance(node, torch.fx.Node) or not isinstance(value, torch.Tensor):
                continue
            try:
                self._judge(i, node, value)
            except Exception as e:  # an operator that cannot run here ends the check of this output, no more
                log.debug("cannot judge output %s", i, exc_info=True)
                self._writer.skipped(f"output {i}", f"cannot be computed again: {type(e).__name__}: {e!s:.200}")

    def _judge(self, i: int, node: torch.fx.Node, actual: torch.Tensor) -> None:
        try:
            judgement = self._replayer.judge(node, actual)
        except Unlike as e:
            message = f"output {i} is {_kind(actual)} in the package and {_kind(torch.as_tensor(e.eager))} in eager"
            self._report(node, Kind.METADATA_MISMATCH, message, {})
            return
        bad = judgement.bad
        if judgement.outcome not in (Outcome.WRONG, Outcome.NON_FINITE) or bad is None:
            return
        at = tuple(bad.nonzero()[0].tolist())
        count, total = int(bad.sum()), actual.numel()
        compiled, expected = actual[at].item(), judgement.eager[at].item()
        evidence = {
            "elements": total,
            "bad": count,
            **where_bad(bad),
            "first_bad": list(at),
            "compiled": compiled,
            "eager": expected,
            "text": [f"at {list(at)}: package {compiled}, eager {expected}"],
        }
        message = f"output {i} of the package has wrong values in {count} of {total} elements"
        self._report(node, Kind.WRONG_VALUES, message, evidence)

    def _report(self, node: torch.fx.Node, kind: Kind, message: str, evidence: dict[str, Any]) -> None:
        name = operator_name(node)
        self._writer.finding(
            Finding(
                kind=kind,
                severity=self._severity,
                check=Check.VALUES,
                stage=Stage.KERNEL,
                nodes=(node.name,),
                ops=(name,) if name else (),
                source=source_lines([node]),
                message=message,
                evidence=evidence,
            )
        )


def _no_attribute(name: str) -> Any:
    raise RuntimeError(f"the exported graph has a constant of its own, {name}")


def _kind(t: torch.Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


class _Launches:
    """Judges the launches of the first call that a file holds, as the values check judges those of a Python wrapper."""

    def __init__(self, program: ExportedProgram, writer: Writer, file: Path) -> None:
        self._exported = program
        self._writer = writer
        self._file = file
        self._described = read_description(file)
        self._found: set[str] = set()

    def check(self) -> set[str]:
        """Record what is wrong; return the kernels that are."""
        record = decode(GraphRecord, self._described.get("graph"))
        self._writer.graph(record)
        watched, how = self._described.get("watch"), self._described.get("replay")
        try:
            if not isinstance(how, dict) or "graph" not in how:
                why = how.get("reason") if isinstance(how, dict) else "it was built without what a replay needs"
                reason = f"cannot be computed again: {why!s:.200}"
            elif watched != "save":
                reason = f"the package records {watched!s:.10}, not tensors: build it with watch='save'"
            else:
                self._judge(self._program(how, record))
                return self._found
        except RecordingError as e:  # of an operator that is not there, say; the outputs can be judged all the same
            reason = f"cannot be computed again: {e!s:.200}"
        self._writer.skipped("the launches of the package", reason)
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

    def _judge(self, program: CompiledProgram) -> None:
        """Tell a watch what happened in the first call. The tensors that a launch reads follow its record."""
        inputs_of = function_inputs(program)
        watch = ValuesWatch(
            self._writer, program, plan(program), self._report, functions=inputs_of, usual=Usual(), probes=False
        )
        launches = {launch.nth: launch for launch in program.model.launches()}
        values: dict[str, Any] = {}
        # Held until the end: the watch only refers to them, and a launch that reads one replaces it among the values.
        inputs: dict[str, Any] | None = None
        running: Launch | None = None
        with self._file.open("rb") as data:
            for record in read_launches(self._file):
                match record:
                    case Seen(call=0) if record.data is not None:
                        values[record.name] = saved_tensor(record, data)
                    case Launched(call=0, phase="before"):
                        if inputs is None:
                            inputs = {n: values.get(n) for n in program.graphs["call"].inputs}
                            watch.enter("call", inputs)
                        if running is not None:
                            watch.after("call", running, dict(values))
                        running = launches.get(record.site)
                    case Launched(call=0, phase="after") if running is not None:
                        watch.before("call", running, dict(values))
        if running is not None:
            watch.after("call", running, dict(values))
        watch.close(None)
