"""Keeps the graph of each stage of a compile in the recording, for reports to show."""

from __future__ import annotations

import itertools
import logging
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchsan.graphs.printed import print_graph
from torchsan.records import ArtifactKind, ArtifactRecord, Direction, Stage

if TYPE_CHECKING:
    from torchsan.recording import Recorder
    from torchsan.torch_internals.compile_stages import CompileStages
    from torchsan.torch_internals.snapshots import Snapshot, Trail
    from torchsan.watch.observer import CompiledProgram

log = logging.getLogger(__name__)


def keep_stage_graphs(recorder: Recorder, stages: CompileStages, program: CompiledProgram) -> None:
    """Record the graph at the end of each stage up to this program, and which passes changed it there.

    The last one is the graph that Inductor generated code for, which the recording has already.
    """
    if not recorder.keeps_artifacts:
        return
    try:
        found = [group for trail in _trails(stages, program.ref.direction) for group in _by_stage(trail.snapshots)]
        for nth, group in enumerate(found, start=1):
            last, stage = group[-1], group[-1].stage
            if nth == len(found) and stage is Stage.POST_GRAD_PASSES and "graph" in program.record.artifacts:
                name = program.record.artifacts["graph"]
            else:
                stem = f"graph{program.ref.id}-{program.ref.direction}"
                name = recorder.artifact(f"{stem}.{nth}-{stage}.fx.py", _text(last))
            record = ArtifactRecord(
                kind=ArtifactKind.STAGE_GRAPH,
                name=name,
                graph=program.ref.id,
                direction=program.ref.direction,
                stage=stage,
                passes=tuple(dict.fromkeys(s.label for s in group if s.label)),
            )
            recorder.event("artifact", {"artifact": record})
    except Exception:  # what is only shown must not end the check, nor the user's compile
        log.debug("the graphs of a compile were not kept", exc_info=True)


def _trails(stages: CompileStages, direction: Direction) -> Iterator[Trail]:
    """The way of a program from Dynamo's graph; that of a backward begins where the joint graph was parted."""
    part = stages.parts[-1] if stages.parts else None
    if direction is not Direction.BACKWARD:
        yield stages.dynamo
        if part is not None:
            yield part.whole
    if part is not None and direction is not Direction.INFERENCE:
        yield part.backward if direction is Direction.BACKWARD else part.forward


def _by_stage(snapshots: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    for _, group in itertools.groupby(snapshots, key=lambda s: s.stage):
        yield list(group)


def _text(snapshot: Snapshot) -> str:
    """A graph as `print_graph` prints that of a module, with the functions that it passes to operators."""
    import torch.fx

    own = snapshot.graph.python_code("self", verbose=True).src.lstrip("\n")
    inner = [print_graph(m) for m in snapshot.attributes.values() if isinstance(m, torch.fx.GraphModule)]
    parts = [textwrap.indent(text, "    ") for text in (own, *inner)]
    return "\n".join(["class GraphModule(torch.nn.Module):", *(part.rstrip() for part in parts)]) + "\n"
