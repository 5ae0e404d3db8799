"""From a recording to what the page shows, as plain JSON values. Executes nothing, and needs no torch."""

from __future__ import annotations

import shlex
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from torchsan._version import __version__
from torchsan.recording import Reader
from torchsan.records import Finding, GraphRecord, Watched, decode, encode
from torchsan.report.html.bounds import Cutter, cut
from torchsan.report.html.evidence import evidence_model
from torchsan.report.html.nodes import node_table, recorded_nodes
from torchsan.report.html.parts import (
    MOST_VALUES,
    GraphKey,
    blamed_launch,
    fastest,
    graph_model,
    memory_part,
    values_part,
)
from torchsan.report.html.sources import Artifacts, Lines, Texts
from torchsan.report.verdict import verdict
from torchsan.torch_internals.wrapper.outline import Wrapper, read_wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`index` is what the page needs at once; `parts` what it unpacks when somebody looks, by name."""

    index: dict[str, Any]
    parts: dict[str, Any]


def build(recording: Reader) -> Model:
    """Return the model of a recording. Raise RecordingError if a record is malformed."""
    lines = Lines(recording.manifest.cwd)
    texts = Texts(recording)
    artifacts = Artifacts(texts)
    graphs = recording.graphs()
    positions: dict[GraphKey, int] = {(g.id, g.direction.value): i for i, g in enumerate(graphs)}
    watched = recording.events("watched")
    values = [decode(Watched, body.get("watched")) for body in watched[:MOST_VALUES]]
    parts: dict[str, Any] = {}
    shown = _graphs(recording, values, lines, artifacts, texts, parts)
    parts["values"] = values_part(values, positions, len(watched))
    memory = memory_part(recording, positions, lines)
    parts["memory"] = memory
    findings = [_finding(f, graphs, positions, lines) for f in recording.findings()]
    _link_repros(recording, findings)
    artifacts.add_others(recording)
    artifacts.add_files(lines)
    index = {
        "torchsan": __version__,
        "run": _run(recording),
        "verdict": _verdict(recording),
        "coverage": _coverage(recording),
        "findings": findings,
        "graphs": shown,
        "lines": lines.table(),
        "files": lines.names(),
        "artifacts": artifacts.found,
        "memory": {"calls": len(memory)},
        "values": {"all": len(watched), "shown": len(values)},
    }
    return Model(index=index, parts=parts | texts.parts)


def _graphs(
    recording: Reader,
    values: list[Watched],
    lines: Lines,
    artifacts: Artifacts,
    texts: Texts,
    parts: dict[str, Any],
) -> list[dict[str, Any]]:
    nodes, times = recorded_nodes(recording), fastest(recording)
    findings: dict[GraphKey, list[Finding]] = defaultdict(list)
    for f in recording.findings():
        if f.graph is not None:
            findings[f.graph.id, f.graph.direction.value].append(f)
    seen: dict[tuple[int | None, str | None], list[Watched]] = defaultdict(list)
    for w in values:
        seen[w.graph, w.direction].append(w)
    shown = []
    for i, graph in enumerate(recording.graphs()):
        key = (graph.id, graph.direction.value)
        wrapper = read_wrapper(texts.read(graph.artifacts["wrapper"])) if "wrapper" in graph.artifacts else Wrapper()
        model = graph_model(
            graph,
            findings=findings[key],
            times=times.get(key, {}),
            values=seen[key],
            checked=recording.checked(graph.id, graph.direction),
            wrapper=wrapper,
            lines=lines,
        )
        text = texts.read(graph.artifacts["graph"]) if "graph" in graph.artifacts else ""
        parts[f"nodes-{i}"] = node_table(nodes.get(key), text, lines)
        shown.append({**model, **artifacts.add_graph(i, graph.artifacts, wrapper)})
    return shown


def _finding(
    finding: Finding, graphs: list[GraphRecord], positions: dict[GraphKey, int], lines: Lines
) -> dict[str, Any]:
    ref = finding.graph
    place = positions.get((ref.id, ref.direction.value)) if ref is not None else None
    names = [cut(n, 200) for n in finding.nodes[:100]]
    return {
        "id": cut(finding.id, 20),
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "check": finding.check.value,
        "stage": finding.stage and finding.stage.value,
        "pass": finding.pass_ and cut(finding.pass_, 300),
        "graph": place,
        "label": f"{ref.id} {ref.direction.value}" if ref is not None else None,
        "kernel": finding.kernel and cut(finding.kernel, 300),
        "launch": blamed_launch(finding, graphs[place]) if place is not None and finding.kernel else None,
        "buffer": finding.buffer and cut(finding.buffer, 300),
        "nodes": names,
        "ops": [cut(n, 200) for n in finding.ops[:100]],
        "source": lines.numbers(finding.source[:50]),
        "message": cut(finding.message, 1500),
        **evidence_model(finding.evidence),
    }


def _link_repros(recording: Reader, findings: list[dict[str, Any]]) -> None:
    """Say of which findings enough was kept for `torchsan repro`."""
    exhibits = [body.get("exhibit") for body in recording.events("exhibit")]
    kept = {e.get("finding") for e in exhibits if isinstance(e, dict) and isinstance(e.get("finding"), str)}
    for finding in findings:
        finding["repro"] = finding["id"] in kept


def _run(recording: Reader) -> dict[str, Any]:
    manifest = recording.manifest
    options = {k: v for k, v in encode(manifest.options).items() if v not in (None, False, [])}
    return {
        "command": cut(shlex.join(["torchsan", "run", *manifest.command]), 1000),
        "name": cut(recording.path.name, 200),
        **{k: cut(getattr(manifest, k), 300) for k in ("cwd", "started", "torch", "torchsan", "python", "platform")},
        "seed": recording.seed,
        "options": Cutter(500, 40)(options),
        "environment": Cutter(500, 60)(manifest.environment),
    }


def _verdict(recording: Reader) -> dict[str, Any]:
    outcome = verdict(recording)
    return {
        "status": outcome.status.value,
        "exit": outcome.exit,
        "reasons": [cut(r) for r in outcome.reasons],
        "program": {"exit": recording.program.exit, "signal": recording.program.signal},
    }


def _coverage(recording: Reader) -> dict[str, Any]:
    coverage = recording.coverage()
    groups: dict[str, list[str]] = defaultdict(list)
    for skipped in coverage.skipped:
        groups[skipped.reason].append(skipped.what)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return {
        **{k: getattr(coverage, k) for k in ("graphs", "kernels", "buffers", "buffers_checked", "ops_checked")},
        "skipped": [
            [cut(reason, 1000), len(what), [cut(w, 200) for w in what[:200]]] for reason, what in ordered[:200]
        ],
        "reasons": len(ordered),
    }
