"""The nodes of a graph: as recorded, or, from recordings that have no nodes, as the text of the graph shows them."""

from __future__ import annotations

from typing import Any

from torchsan.graphs.printed import try_parse
from torchsan.recording import Reader
from torchsan.records import GraphNodes, NodeRecord, SourceLine, decode
from torchsan.report.html.sources import Lines, cut

_MOST_TEXT = 400


def recorded_nodes(recording: Reader) -> dict[tuple[int, str], GraphNodes]:
    """The nodes of each graph by its id and direction, as far as they were recorded."""
    found = [decode(GraphNodes, body.get("nodes")) for body in recording.events("nodes")]
    return {(g.graph, g.direction.value): g for g in found}


def node_table(recorded: GraphNodes | None, text: str, lines: Lines) -> list[list[Any]]:
    """For each node: name, operator, type, inputs, number of its source line or None, line in the graph's text."""
    graph = try_parse(text)
    shown = {node.name: node for node in graph.computed()} if graph is not None else {}
    if recorded is None:
        return [
            _row(NodeRecord(name=n.name, op=n.op, inputs=n.parents, type=n.kind), n.source, n.line, lines)
            for n in shown.values()
        ]
    # Inputs stand in the line that begins the graph.
    start = graph.line if graph is not None else 0
    return [
        _row(node, _source(recorded, node.source), shown[node.name].line if node.name in shown else start, lines)
        for node in recorded.nodes
        if node.op != "output"
    ]


def _source(recorded: GraphNodes, number: int | None) -> SourceLine | None:
    return recorded.sources[number] if number is not None and 0 <= number < len(recorded.sources) else None


def _row(node: NodeRecord, source: SourceLine | None, line: int, lines: Lines) -> list[Any]:
    return [
        cut(node.name, _MOST_TEXT),
        cut(node.op, _MOST_TEXT),
        cut(node.type, _MOST_TEXT),
        [cut(name, _MOST_TEXT) for name in dict.fromkeys(node.inputs[:50])],
        lines.number(source) if source is not None else None,
        line,
    ]
