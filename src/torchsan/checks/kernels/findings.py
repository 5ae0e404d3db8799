"""Where in a program a kernel was met, and what the referee found about it, told of that place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchsan.graphs.nodes import source_lines
from torchsan.records import Finding, GraphRef, KernelKind, SourceLine, Stage
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CompiledProgram
from torchsan.watch.provenance import caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A launch of a compiled program; without a graph, eager code."""

    graph: GraphRef | None = None
    kernel: str | None = None
    nodes: tuple[str, ...] = ()
    source: tuple[SourceLine, ...] = ()
    buffers: tuple[str, ...] = ()
    generated: bool = False
    """Whether Inductor made the kernel, and not the user."""

    @classmethod
    def of(cls, program: CompiledProgram, function: str, launch: Launch) -> Place:
        """The place of a launch."""
        graph = program.graphs.get(function)
        known = {n.name: n for n in graph.module.graph.nodes} if graph is not None else {}
        buffers = program.computes.get(launch.nth, ())
        names = dict.fromkeys(o for b in buffers for o in (*((b.node,) if b.node else ()), *b.origins) if o in known)
        return cls(
            graph=program.ref,
            kernel=launch.kernel,
            nodes=tuple(names),
            source=source_lines([known[n] for n in names]),
            buffers=tuple(dict.fromkeys((*launch.writes, *(b.storage for b in buffers)))),
            generated=launch.kind is not KernelKind.FALLBACK and not launch.users_own,
        )


def placed(finding: Finding, place: Place, name: str, ops: tuple[str, ...]) -> Finding:
    """The finding with the place in the program where its kernel was met."""
    lines = [line for line in finding.source if "/torchinductor_" not in line.file and line.line]
    return replace(
        finding,
        stage=Stage.KERNEL if place.graph is not None else Stage.EAGER,
        graph=place.graph,
        kernel=place.kernel or name,
        nodes=place.nodes,
        ops=ops,
        source=tuple(dict.fromkeys((*lines, *place.source))) or caller(),
    )
