"""Sees every compile, records the program that it generated, and puts probes into it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan.errors import in_one_line
from torchsan.graphs.nodes import graph_nodes, operator_name, source_lines
from torchsan.graphs.printed import print_graph
from torchsan.recording.spent import OWN, spent
from torchsan.records import Direction, GraphId, GraphRecord, KernelKind, KernelRecord
from torchsan.torch_internals import Buffer, Compile, LoweredGraph, observe_compiles
from torchsan.torch_internals.patches import missing
from torchsan.torch_internals.seams import called
from torchsan.torch_internals.wrapper import Launch, Program, parse
from torchsan.torch_internals.wrapper.kernels import mutated_arguments
from torchsan.torch_internals.wrapper.model import Alias, Liveness
from torchsan.torch_internals.wrapper.rewrite import probed_functions
from torchsan.watch.cache_entries import keep_cache_entry
from torchsan.watch.calls import ProbedProgram
from torchsan.watch.observer import CompiledProgram, Observer, not_checked
from torchsan.watch.operators import expect_news
from torchsan.watch.pace import Pace
from torchsan.watch.provenance import buffers_of_launches
from torchsan.watch.requests import Requests

if TYPE_CHECKING:
    import torch.fx

    from torchsan.recording import Recorder
    from torchsan.torch_internals.caches import CachedCode
    from torchsan.torch_internals.compile_stages import CompileStages

log = logging.getLogger(__name__)


class Programs:
    """The compiled programs that are shown to `observers`, from their compile to `detach`."""

    def __init__(self, writer: Recorder, observers: tuple[Observer, ...]) -> None:
        self._writer = writer
        self._observers = observers
        self._pace = Pace()
        self.requests = Requests(writer, observers)
        self._lock = threading.Lock()
        self._ids: dict[object, GraphId] = {}
        self._undo: list[Callable[[], None]] = []
        self._last = threading.local()

    @contextmanager
    def compiles(self, *, forget: bool = True) -> Iterator[None]:
        """See what is compiled while the context lasts; `forget` what was compiled before, and after it what was here.

        The programs are watched beyond it.
        """
        with observe_compiles(
            self._compiled,
            self._compile_failed,
            self._python_instead,
            self._from_cache,
            cached=self._cached,
            saved=self._saved,
            forget=forget,
        ):
            yield

    def _saved(self, key: str, folder: Path) -> None:
        """The FX graph cache has what was compiled last on this thread."""
        newest = self._newest()
        keep_cache_entry(self._writer, newest.ref if newest else None, cache="FX graph cache", key=key, folder=folder)

    def _newest(self) -> CompiledProgram | None:
        program: CompiledProgram | None = getattr(self._last, "program", None)
        return program

    def _cached(self, found: CachedCode) -> None:
        code = "" if found.same else found.code
        newest = self._newest()
        keep_cache_entry(
            self._writer,
            newest.ref if newest else None,
            cache=found.cache,
            key=found.key,
            folder=found.folder,
            read=True,
            code=code,
        )
        for observer in self._observers:
            observer.cached(found)
        if not found.same and found.watch is None:
            reason = "the program runs other code than a fresh compile gives, unchecked; --check cache compares"
            self._writer.skipped(f"the {found.cache}, {found.key[:12]}", reason)
        with self._lock:
            self._undo.append(partial(self._leave, found, newest))

    def _leave(self, found: CachedCode, program: CompiledProgram | None) -> None:
        """Watch cached code no more, and tell how often it ran without the program that it stands in for."""
        found.watch = None
        if program is None or not found.alone:
            return
        for observer in self._observers:
            observer.replaced(program, found.alone)
        calls = "1 call" if found.alone == 1 else f"{found.alone} calls"
        reason = f"the program ran what the {found.cache} holds, which is other code than a fresh compile gives"
        self._writer.skipped(f"{calls} of graph {program.record.label}", reason)

    def _compile_failed(self, error: Exception) -> None:
        not_checked(self._writer, "a compiled graph", f"could not be observed: {in_one_line(error)}")

    def _from_cache(self) -> None:
        reason = "its code came from a cache of compiled code, which torchsan could not bypass; it ran unobserved"
        not_checked(self._writer, "a compiled graph", reason)

    def _python_instead(self) -> None:
        reason = "the session compiled the same kernels with the Python wrapper, which is what it observed"
        self._writer.skipped("the C++ wrapper (cpp_wrapper=True)", reason)

    def _watch_failed(self, program: CompiledProgram, observer: str, error: Exception) -> None:
        not_checked(
            self._writer, f"{observer} of graph {program.record.label}", f"torchsan failed: {in_one_line(error)}"
        )

    def _compiled(self, compile_: Compile) -> None:
        with spent(OWN):
            self._observe(compile_)

    def _observe(self, compile_: Compile) -> None:
        key = compile_.key if compile_.key is not None else object()  # What has no key belongs to nothing else.
        with self._lock:
            if key not in self._ids:
                self._ids[key] = self._writer.new_graph()
        id_ = self._ids[key]
        try:
            model = parse(compile_.source, mutated_arguments)
        except SyntaxError:
            self._record_unreadable(id_, compile_)
            return
        graphs = {g.function: g for g in compile_.graphs}
        computes: dict[int, tuple[Buffer, ...]] = {}
        for name, function in model.functions.items():
            if name in graphs:
                computes |= buffers_of_launches(graphs[name].buffers, function)
        record = self._record(id_, compile_, model, graphs, computes)
        program = CompiledProgram(
            record=record,
            model=model,
            graphs=graphs,
            computes=computes,
            constants=vars(compile_.generated),
            results=compile_.results,
            called=compile_.called,
        )
        self._last.program = program
        self._writer.graph(record)
        self._writer.event("nodes", {"nodes": graph_nodes(program.ref, compile_.graphs, compile_.called)})
        for step in model.opaque():
            where = f"graph {record.label}, wrapper line {step.line}"
            not_checked(self._writer, where, f"statement not understood, not observed: {step.text:.120}")
        willing = tuple(o for o in self._able() if self._show(o, program))
        self._probe(program, compile_, willing)

    def _able(self) -> list[Observer]:
        """The observers without the checks that need what this PyTorch lacks."""
        users = {observer: observer.name.removesuffix(" check") for observer in self._observers}
        lacking = {user: reasons for user in users.values() if (reasons := missing(user))}
        for user, reasons in lacking.items():
            for reason in reasons:
                not_checked(self._writer, called(user), reason)
        return [observer for observer, user in users.items() if user not in lacking]

    def _show(self, observer: Observer, program: CompiledProgram) -> bool:
        """Show a program to an observer; one that fails on it does not see its calls, and the others do."""
        try:
            with spent(observer.name, program.ref):
                observer.compiled(program)
        except Exception as e:
            log.debug("%s failed", observer.name, exc_info=True)
            self._watch_failed(program, observer.name, e)
            return False
        return True

    def _record(
        self,
        id_: GraphId,
        compile_: Compile,
        model: Program,
        graphs: dict[str, LoweredGraph],
        computes: dict[int, tuple[Buffer, ...]],
    ) -> GraphRecord:
        nodes = {name: {n.name: n for n in graph.module.graph.nodes} for name, graph in graphs.items()}
        kernels = [
            kernel_record(launch, nodes.get(name, {}), computes.get(launch.nth, ()))
            for name, function in model.functions.items()
            for launch in function.launches()
        ]
        stem = f"graph{id_}-{compile_.direction}"
        whole = compile_.graphs[0]
        artifacts = {
            "wrapper": self._writer.artifact(f"{stem}.wrapper.py", compile_.source),
            "graph": self._writer.artifact(f"{stem}.fx.py", print_graph(whole.module)),
        }
        return GraphRecord(
            id=id_,
            direction=compile_.direction,
            kernels=tuple(kernels),
            buffers=tuple(live_buffers(model)),
            inputs=whole.inputs,
            artifacts=artifacts,
            compile_seconds=compile_.seconds,
        )

    def _record_unreadable(self, id_: GraphId, compile_: Compile) -> None:
        name = self._writer.artifact(f"graph{id_}-{compile_.direction}.wrapper.txt", compile_.source)
        self._writer.graph(GraphRecord(id=id_, direction=compile_.direction, artifacts={"wrapper": name}))
        not_checked(self._writer, f"graph {id_} {compile_.direction}", "its wrapper is not Python; it ran unobserved")

    def _probe(self, program: CompiledProgram, compile_: Compile, observers: tuple[Observer, ...]) -> None:
        """Put a ProbedProgram in the place of the generated module's `call`."""
        module: Any = compile_.generated
        if not observers or "call" not in program.model.functions:
            return
        probed = probed_functions(program.model, vars(module), module.__file__)
        original = module.call
        flight = self._writer.flight
        entry = ProbedProgram(
            program,
            original,
            probed,
            observers,
            self._watch_failed,
            flight,
            pace=self._pace,
            poll=self.requests.poll,
        )
        module.call = entry
        expect_news()

        def undo() -> None:
            entry.detach()
            module.call = original

        with self._lock:
            self._undo.append(undo)

    def detach(self) -> None:
        """Watch no more, and close the observers."""
        with self._lock:
            undo, self._undo = self._undo, []
        for action in undo:
            action()
        for observer in self._observers:
            try:
                with spent(observer.name):
                    observer.close()
            except Exception as e:  # the others are closed all the same
                log.debug("%s failed to close", observer.name, exc_info=True)
                not_checked(self._writer, observer.name, f"torchsan failed: {in_one_line(e)}")


def live_buffers(model: Program) -> Iterator[str]:
    """The variables that launches write and something reads, each once; for an unpacked result, its parts."""
    seen: set[str] = set()
    for function in model.functions.values():
        unpacked: dict[str, list[str]] = {}
        for step in function.walk():
            if isinstance(step, Alias) and not step.reused:
                unpacked.setdefault(step.source, []).append(step.name)
        liveness = Liveness(function)
        for launch in function.launches():
            for name in launch.writes:
                dead = name not in function.inputs and not liveness.read_after(name, launch.line)
                for part in unpacked.get(name, [name]) if name == launch.result else [name]:
                    if part not in seen and not dead:
                        seen.add(part)
                        yield part


def kernel_record(launch: Launch, by_name: Mapping[str, torch.fx.Node], buffers: tuple[Buffer, ...]) -> KernelRecord:
    """What a launch computes of the nodes of its graph, and from which lines of source."""
    names = dict.fromkeys(o for b in buffers for o in (*([b.node] if b.node else []), *b.origins))
    # In the order of the graph, which is the order of the user's program.
    nodes = sorted(by_name[name] for name in names if name in by_name)
    own = {b.node for b in buffers}
    # A library routine computes its own node: the others are what was fused into the buffers that it reads.
    first = nodes if launch.kind is KernelKind.FUSED else sorted(nodes, key=lambda n: n.name not in own)
    return KernelRecord(
        name=launch.kernel,
        nth=launch.nth,
        kind=launch.kind,
        reads=launch.reads,
        writes=launch.writes,
        nodes=tuple(n.name for n in nodes),
        ops=tuple(dict.fromkeys(op for n in nodes if (op := operator_name(n)) is not None)),
        source=source_lines(first),
    )


def graph_record(writer: Recorder, stages: CompileStages) -> GraphRecord:
    """Describe a graph that another backend than Inductor compiled: it has no kernels that anyone could see."""
    id_ = writer.new_graph()
    graph = stages.dynamo.snapshots[0].graph
    training = any(part.training for part in stages.parts)
    return GraphRecord(
        id=id_,
        direction=Direction.FORWARD if training else Direction.INFERENCE,
        buffers=tuple(n.name for n in graph.nodes if n.op not in ("placeholder", "output")),
        inputs=tuple(n.name for n in graph.nodes if n.op == "placeholder"),
        artifacts={"graph": writer.artifact(f"graph{id_}-dynamo.fx.txt", str(graph))},
    )
