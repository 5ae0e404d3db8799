"""The nodes of a graph: as recorded, or, from recordings that have no nodes, as the text of the graph shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchsan.recording import Reader
from torchsan.records import GraphNodes, GraphRecord, NodeRecord, SourceLine, decode
from torchsan.report.html.sources import Lines, cut

_NODE = re.compile(
    r"""\s*(?P<name>[A-Za-z_]\w*)\s*(?::\s*["'](?P<type>[^"']*)["'])?\s*=\s*(?P<op>[\w.\[\]]+)(?:\((?P<args>.*))?"""
)
_FILE = re.compile(r"\s*# File: (?P<file>.+?):(?P<line>\d+) in [^,]*(?:, code: (?P<code>.*))?$")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MOST_TEXT = 400


def recorded_nodes(recording: Reader) -> dict[tuple[int, str], GraphNodes]:
    """The nodes of each graph by its id and direction, as far as they were recorded."""
    found = [decode(GraphNodes, body.get("nodes")) for body in recording.events("nodes")]
    return {(g.graph, g.direction.value): g for g in found}


def node_table(graph: GraphRecord, recorded: GraphNodes | None, text: str, lines: Lines) -> list[list[Any]]:
    """For each node: name, operator, type, inputs, number of its source line or None, line in the graph's text."""
    shown = {node.name: (node, source, n) for node, source, n in _read(text)}
    if recorded is None:
        return [_row(node, source, n, lines) for node, source, n in shown.values()]
    places = {name: n for name, (_, _, n) in shown.items()}
    # Inputs stand in the line that begins the graph.
    start = next((n for n, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("def ")), 0)
    return [
        _row(node, _source(recorded, node.source), places.get(node.name, start), lines)
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
        [cut(name, _MOST_TEXT) for name in node.inputs[:50]],
        lines.number(source) if source is not None else None,
        line,
    ]


def _read(text: str) -> Iterator[tuple[NodeRecord, SourceLine | None, int]]:
    """The nodes of a graph as `print_readable` writes it, their source lines, and where they stand."""
    source: SourceLine | None = None
    for n, line in enumerate(text.splitlines(), 1):
        if len(line) > 20_000:
            continue
        file = _FILE.match(line)
        if file is not None:
            source = SourceLine(file=file["file"], line=int(file["line"][:9]), code=file["code"] or "")
        elif line.lstrip().startswith("# No stacktrace"):
            source = None
        elif (node := _NODE.match(line)) is not None and not line.lstrip().startswith(("#", "class", "def")):
            # `;  x = None` drops a value that is no longer needed.
            arguments = (node["args"] or node["op"]).split(";")[0]
            inputs = tuple(dict.fromkeys(_NAME.findall(arguments)))[:50]
            op = node["op"].removeprefix("torch.ops.")
            yield NodeRecord(name=node["name"], op=op, inputs=inputs, type=node["type"] or ""), source, n
