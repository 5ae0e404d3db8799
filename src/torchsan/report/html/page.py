"""The page: what it shows of a recording as plain JSON values, and one file with that, our script and our style.

Executes nothing from the recording, and needs no torch.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from torchsan._version import __version__
from torchsan.recording import Reader
from torchsan.records import ArtifactRecord, Check, Finding, Gap, SourceLine, Watched, decode, encode
from torchsan.report.findings import began_at, skipped_by_reason, when_text
from torchsan.report.html.evidence import evidence_model
from torchsan.report.html.nodes import node_table, recorded_nodes
from torchsan.report.html.parts import (
    MOST_KERNELS,
    MOST_VALUES,
    GraphKey,
    fastest,
    graph_model,
    memory_part,
    values_part,
)
from torchsan.report.html.plain import digest, static
from torchsan.report.html.sources import Artifacts, Cutter, Lines, cut, cut_all
from torchsan.report.launches import Launches
from torchsan.report.verdict import verdict
from torchsan.torch_internals.wrapper.outline import Wrapper, read_wrapper

_MOST_MADE = 5000
_SCRIPTS = ("dom", "source", "pictures", "kernel", "verdict", "findings", "program", "memory", "values", "artifacts")
_SCRIPTS_LAST = ("search", "app")


def render_html(recording: Reader) -> str:
    """Return the report of a recording as one HTML file. Raise RecordingError if a record is malformed."""
    return render_model(build(recording))


def render_model(model: Model) -> str:
    """Return the page of a model.

    Nothing from the recording is markup or code in it. The index is JSON in a block that is no script to the browser,
    without a `<`, so that nothing in it can end the block. The parts are packed, and have no characters but those of
    base64. The policy allows our script and our style by their hashes, and nothing else: no network, no other script,
    no markup made from text.
    """
    style = static("report.css")
    script = "\n".join(["(() => {", '"use strict";', *(static(f"{n}.js") for n in _SCRIPTS + _SCRIPTS_LAST), "})();"])
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    title = f"torchsan: {model.index['verdict']['status']}: {model.index['run']['command']}"
    data = [_block("index", "application/json", _json(model.index))]
    data += [_block(f"part-{name}", "text/plain", _packed(part)) for name, part in model.parts.items()]
    places = {
        "POLICY": policy,
        "TITLE": html.escape(title),
        "STYLE": style,
        "DATA": "\n".join(data),
        "SCRIPT": script,
    }
    return re.sub(f"%({'|'.join(places)})%", lambda place: places[place[1]], static("page.html")) + "\n"


def _json(value: Any) -> str:
    """JSON that can stand in an HTML file: ASCII, and no character that means something to HTML."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _packed(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _block(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`index` is what the page needs at once; `parts` what it unpacks when somebody looks, by name."""

    index: dict[str, Any]
    parts: dict[str, Any]


def build(recording: Reader) -> Model:
    """Return the model of a recording. Raise RecordingError if a record is malformed."""
    lines = Lines(recording.manifest.cwd)
    artifacts = Artifacts(recording)
    graphs = recording.graphs()
    positions: dict[GraphKey, int] = {(g.id, g.direction.value): i for i, g in enumerate(graphs)}
    watched = recording.events("watched")
    values = [decode(Watched, body.get("watched")) for body in watched[:MOST_VALUES]]
    parts: dict[str, Any] = {}
    shown = _graphs(recording, values, lines, artifacts, parts)
    parts["values"] = values_part(values, positions, len(watched))
    memory = memory_part(recording, positions, lines)
    parts["memory"] = memory
    kept = recording.reproducible()
    launches = [Launches(graph) for graph in graphs]
    began = began_at(recording.manifest)
    findings = [_finding(f, launches, positions, lines, began) | {"repro": f.id in kept} for f in recording.findings()]
    coverage = _coverage(recording, lines)
    artifacts.add_others()
    artifacts.add_files(lines)
    index = {
        "torchsan": __version__,
        "run": _run(recording),
        "verdict": _verdict(recording),
        "coverage": coverage,
        "findings": findings,
        "graphs": shown,
        "lines": lines.table(),
        "files": lines.names(),
        "artifacts": artifacts.found,
        "memory": {"calls": len(memory)},
        "values": {"all": len(watched), "shown": len(values)},
    }
    return Model(index=index, parts=parts | artifacts.parts)


def _graphs(
    recording: Reader,
    values: list[Watched],
    lines: Lines,
    artifacts: Artifacts,
    parts: dict[str, Any],
) -> list[dict[str, Any]]:
    nodes, times = recorded_nodes(recording), fastest(recording)
    made, when = _made(recording), _when(recording)
    findings: dict[GraphKey, list[Finding]] = defaultdict(list)
    for f in recording.findings():
        if f.graph is not None:
            findings[f.graph.id, f.graph.direction.value].append(f)
    seen: dict[tuple[int | None, str | None], list[Watched]] = defaultdict(list)
    for w in values:
        seen[w.graph, w.direction].append(w)
    shown = []
    left = MOST_KERNELS
    for i, graph in enumerate(recording.graphs()):
        key = (graph.id, graph.direction.value)
        texts = {name: artifacts.read_of_graph(graph.artifacts.get(name)) for name in ("wrapper", "graph")}
        wrapper = read_wrapper(texts["wrapper"]) if texts["wrapper"] else Wrapper()
        model = graph_model(
            graph,
            findings=findings[key],
            times=times.get(key, {}),
            values=seen[key],
            checked={check: recording.checked(graph.id, graph.direction, check) for check in _looking(recording)},
            wrapper=wrapper,
            lines=lines,
            most=left,
        )
        left = max(0, left - len(graph.kernels))
        parts[f"nodes-{i}"] = node_table(nodes.get(key), texts["graph"], lines)
        numbers = artifacts.add_graph(i, graph.artifacts, wrapper) | artifacts.add_made(i, made[key])
        for n in numbers["stages"]:
            if n != numbers["artifacts"].get("graph"):
                artifacts.found[n]["nodes"] = f"nodes-of-{n}"
                parts[f"nodes-of-{n}"] = node_table(None, artifacts.parts[artifacts.found[n]["text"]], lines)
        shown.append({**model, **numbers, "made": when.get(key)})
    artifacts.connect_stages(shown)
    return shown


def _made(recording: Reader) -> dict[GraphKey, list[ArtifactRecord]]:
    """What came of the compile of each graph, beside its wrapper and the graph that this was generated from."""
    found: dict[GraphKey, list[ArtifactRecord]] = defaultdict(list)
    for body in recording.events("artifact")[:_MOST_MADE]:
        record = decode(ArtifactRecord, body.get("artifact"))
        found[record.graph, record.direction.value].append(record)
    return found


def _when(recording: Reader) -> dict[GraphKey, str]:
    """When the code of each graph was there."""
    found: dict[GraphKey, str] = {}
    times = [event.time for event in recording.timed() if event.kind == "graph"]
    # A graph is recorded once, in the order of the log.
    if len(times) == len(recording.graphs()):
        for graph, time in zip(recording.graphs(), times, strict=True):
            with suppress(ValueError, OverflowError, OSError):
                found[graph.id, graph.direction.value] = datetime.fromtimestamp(time).isoformat(" ", "seconds")
    return found


def _looking(recording: Reader) -> list[Check]:
    """The checks of a run that look at what single kernels compute."""
    return [check for check in (Check.VALUES, Check.MEMORY) if check in recording.manifest.options.check]


def _finding(
    finding: Finding, graphs: Sequence[Launches], positions: dict[GraphKey, int], lines: Lines, began: float | None
) -> dict[str, Any]:
    ref = finding.graph
    place = positions.get((ref.id, ref.direction.value)) if ref is not None else None
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
        "launch": graphs[place].blamed(finding) if place is not None and finding.kernel else None,
        "buffer": finding.buffer and cut(finding.buffer, 300),
        "nodes": cut_all(finding.nodes, 100),
        "ops": cut_all(finding.ops, 100),
        "source": lines.numbers(finding.source[:50]),
        "message": cut(finding.message, 1500),
        "when": cut(when_text(finding, began), 200),
        "follows": cut(str(finding.evidence["follows"]), 20) if finding.evidence.get("follows") else None,
        **evidence_model(finding.evidence),
    }


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


_MOST_GAPS = 500


def _coverage(recording: Reader, lines: Lines) -> dict[str, Any]:
    coverage = recording.coverage()
    ordered = skipped_by_reason(coverage)
    return {
        **{k: getattr(coverage, k) for k in ("graphs", "kernels", "buffers", "buffers_checked", "ops_checked")},
        "skipped": [[cut(reason, 1000), len(what), cut_all(what, 200)] for reason, what in ordered[:200]],
        "reasons": len(ordered),
        "gaps": [
            [gap.kind.value, cut(gap.function, 200), _line(gap, lines), cut(gap.reason, 500), gap.times]
            for gap in coverage.gaps[:_MOST_GAPS]
        ],
        "calls": [[c.graph, c.direction.value, c.seen, c.checked] for c in recording.calls()[:_MOST_GAPS]],
    }


def _line(gap: Gap, lines: Lines) -> int | None:
    return lines.number(SourceLine(file=gap.file, line=gap.line, code=gap.code)) if gap.file else None
