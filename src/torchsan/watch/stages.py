"""The instrument for the stages of a compile: every ladder that is built, and a record of the graph it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchsan.records import Direction, GraphRecord
from torchsan.torch_internals.compile_stages import CompileStages, observe_compile_stages

if TYPE_CHECKING:
    from torchsan.recording import Recorder


@contextmanager
def observe_stages(built: Callable[[CompileStages], None], failed: Callable[[Exception], None]) -> Iterator[None]:
    """Call `built` with the ladder of every compile while the context lasts; `failed` if one could not be built."""
    with observe_compile_stages(built, failed):
        yield


def graph_record(writer: Recorder, ladder: CompileStages) -> GraphRecord:
    """Describe a graph that another backend than Inductor compiled: it has no kernels that anyone could see."""
    id_ = writer.new_graph()
    graph = ladder.dynamo.snapshots[0].graph
    training = any(part.training for part in ladder.parts)
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    return GraphRecord(
        id=id_,
        direction=Direction.FORWARD if training else Direction.INFERENCE,
        buffers=tuple(n.name for n in nodes),
        inputs=tuple(n.name for n in graph.nodes if n.op == "placeholder"),
        artifacts={"graph": writer.artifact(f"graph{id_}-dynamo.fx.txt", str(graph))},
    )
