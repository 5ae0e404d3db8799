"""The report that programs read. Its form is a public contract, and `schema.json` beside this file states it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from torchsan.recording import Program, Reader
from torchsan.recording.folder import Manifest
from torchsan.records import CallTimes, Check, Coverage, Finding, GraphRecord, KernelRecord, Kind, decode, encode
from torchsan.records.finding import fingerprint
from torchsan.records.suppression import Suppression
from torchsan.report import cost
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.verdict import LaunchInFlight, Verdict, in_flight, suppressed_by, verdict

REPORT_SCHEMA = 2


class JsonExporter(Exporter[Reader]):
    """Writes the report of a recording for programs."""

    name = "json"
    help = "write the report for programs to FILE, or to - for stdout"

    def render(self, subject: Reader) -> str:
        return json_text(as_json(subject))


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of the report."""
    text = resources.files("torchsan.report").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    finding = schema["$defs"]["finding"]["properties"]
    finding["check"] = {"enum": [str(check) for check in Check]}
    finding["kind"] = {"enum": [str(kind) for kind in Kind]}
    return schema


def as_json(recording: Reader) -> dict[str, Any]:
    """Return the report as JSON values."""
    findings = [finding_values(f, suppressed_by(recording, f)) for f in recording.findings()]
    report = report_values(recording.manifest, verdict(recording), recording.program, findings, recording.coverage())
    return report | about_the_run([recording])


def _in_flight(found: LaunchInFlight) -> dict[str, Any]:
    launch, kernel = found.launch, found.kernel
    return {
        "graph": {"id": launch.graph, "direction": str(launch.direction)},
        "kernel": kernel.name if kernel is not None else None,
        "nth": launch.nth,
        "call": launch.call,
        "checking": launch.checking,
        "source": _source(encode(kernel.source)) if kernel is not None else [],
    }


def _source(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: line[k] for k in ("file", "line", "code", "module")} for line in lines]


def about_the_run(recordings: Sequence[Reader]) -> dict[str, Any]:
    """Return what schema 2 adds: where the recording is, what was asked for, and what ran, how often and how long."""
    first = recordings[0]
    graphs = [(g, reader) for reader in recordings for g in reader.graphs()]
    return {
        "recording": str(first.place or first.path) if len(recordings) == 1 else None,
        "options": encode(first.manifest.options),
        "kernels": [_kernel(g, kernel) for g, _ in graphs for kernel in g.kernels],
        "calls": [_calls(g, reader) for g, reader in graphs],
        "timings": [timing for reader in recordings for timing in _timings(reader)],
        "cost": cost.as_json(first) if len(recordings) == 1 else None,
        "in_flight": [_in_flight(found) for reader in recordings for found in in_flight(reader)],
    }


def _graph(graph: GraphRecord | CallTimes) -> dict[str, Any]:
    id_ = graph.id if isinstance(graph, GraphRecord) else graph.graph
    return {"id": id_, "direction": str(graph.direction)}


def _kernel(graph: GraphRecord, kernel: KernelRecord) -> dict[str, Any]:
    value: dict[str, Any] = encode(kernel)
    return {"graph": _graph(graph)} | value | {"source": _source(value["source"])}


def _calls(graph: GraphRecord, reader: Reader) -> dict[str, Any]:
    counted = {(c.graph, c.direction): c for c in reader.calls()}.get((graph.id, graph.direction))
    # Calls of a graph that another backend than Inductor compiled are not counted.
    none = 0 if graph.kernels else None
    numbers = {"seen": counted.seen, "checked": counted.checked} if counted else {"seen": none, "checked": none}
    return {"graph": _graph(graph)} | numbers


_LONGEST = 1e9
"""Seconds that no launch takes."""


def _timings(reader: Reader) -> Iterator[dict[str, Any]]:
    """How long the calls of each graph that were timed took in all, kernel by kernel."""
    kernels = {(g.id, g.direction, k.nth): k.name for g in reader.graphs() for k in g.kernels}
    checks = cost.launch_checks(reader)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for body in reader.events("times"):
        call = decode(CallTimes, body.get("times"))
        for launch in call.launches:
            key = (call.graph, call.direction, launch.nth)
            # What no clock shows, NaN among it, is damage, and would add up to no number.
            if key in kernels and 0 <= launch.seconds < _LONGEST:
                names = {"graph": _graph(call), "kernel": kernels[key], "nth": launch.nth}
                sums = {"launches": 0, "seconds": 0.0, "checks": checks.get(key, {})}
                total = found.setdefault(key, names | sums)
                total["launches"] += launch.launches
                total["seconds"] += launch.seconds
    yield from found.values()


def report_values(
    manifest: Manifest, outcome: Verdict, program: Program, findings: list[dict[str, Any]], coverage: Coverage
) -> dict[str, Any]:
    """Return a report in the form of the contract; `findings` are what `finding_values` gives."""
    return {
        "schema": REPORT_SCHEMA,
        "torchsan": manifest.torchsan,
        "torch": manifest.torch,
        "command": encode(manifest.command),
        "status": outcome.status.value,
        "program": encode(program),
        "findings": findings,
        "coverage": encode(coverage),
    }


def finding_values(finding: Finding, suppressed: Suppression | None = None) -> dict[str, Any]:
    """Return a finding in the form of the contract."""
    value: dict[str, Any] = encode(finding)
    known = {"fingerprint": fingerprint(finding), "suppressed": suppressed.reason if suppressed else None}
    return {"id": value["id"]} | value | {"source": _source(value["source"])} | known
