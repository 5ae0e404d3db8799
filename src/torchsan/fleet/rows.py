"""One recording as rows of three tables: `runs`, `findings` and `kernels`. Importing it imports no torch.

docs/reference/tables.md lists the columns; they only ever grow.
"""

from __future__ import annotations

from typing import Any

from torchsan.aoti.launches import as_recording
from torchsan.errors import RecordingError, TorchsanError
from torchsan.recording import Rank, Reader, local_copy
from torchsan.records import Finding, Severity, decode
from torchsan.records.finding import fingerprint
from torchsan.report.verdict import suppressed_by, verdict

Row = dict[str, Any]
COVERED = ("graphs", "kernels", "buffers", "buffers_checked", "ops_checked")
"""What a run counts of what it looked at."""

COLUMNS: dict[str, dict[str, str]] = {
    "runs": {
        "run": "VARCHAR",
        "host": "VARCHAR",
        "rank": "BIGINT",
        "started": "VARCHAR",
        "command": "VARCHAR",
        "torch": "VARCHAR",
        "torchsan": "VARCHAR",
        "python": "VARCHAR",
        "platform": "VARCHAR",
        "status": "VARCHAR",
        "exit": "BIGINT",
        "reasons": "VARCHAR[]",
        "errors": "BIGINT",
        "warnings": "BIGINT",
        "notes": "BIGINT",
        **dict.fromkeys(COVERED, "BIGINT"),
    },
    "findings": {
        "run": "VARCHAR",
        "host": "VARCHAR",
        "rank": "BIGINT",
        "torch": "VARCHAR",
        "id": "VARCHAR",
        "fingerprint": "VARCHAR",
        "kind": "VARCHAR",
        "severity": "VARCHAR",
        "check": "VARCHAR",
        "stage": "VARCHAR",
        "pass": "VARCHAR",
        "graph": "BIGINT",
        "direction": "VARCHAR",
        "kernel": "VARCHAR",
        "buffer": "VARCHAR",
        "nodes": "VARCHAR[]",
        "ops": "VARCHAR[]",
        "file": "VARCHAR",
        "line": "BIGINT",
        "code": "VARCHAR",
        "message": "VARCHAR",
        "suppressed": "VARCHAR",
        "call": "BIGINT",
        "step": "BIGINT",
        "time": "DOUBLE",
    },
    "kernels": {
        "run": "VARCHAR",
        "graph": "BIGINT",
        "direction": "VARCHAR",
        "nth": "BIGINT",
        "kernel": "VARCHAR",
        "kind": "VARCHAR",
        "ops": "VARCHAR[]",
        "file": "VARCHAR",
        "line": "BIGINT",
    },
}
"""The columns of each table with their types in SQL."""


def rows_of(place: str) -> dict[str, list[Row]]:
    """Return the rows of the recording at a path or URL. One that cannot be read is a run with that as its reason."""
    try:
        with local_copy(place) as folder:
            rows = _rows(place, Reader(as_recording(folder)))
            numbers = (value for many in rows.values() for row in many for value in row.values() if type(value) is int)
            if any(not -(2**63) <= number < 2**63 for number in numbers):
                raise RecordingError(
                    f"{place} has a number that no table holds; the recording is damaged", slug="malformed-record"
                )
            return rows
    except TorchsanError as e:
        return {"runs": [{"run": place, "status": "incomplete", "exit": 4, "reasons": [str(e)]}]}


def _rows(place: str, recording: Reader) -> dict[str, list[Row]]:
    manifest, outcome, findings = recording.manifest, verdict(recording), recording.findings()
    coverage = recording.coverage()
    ranks = [decode(Rank, event.get("rank")).rank for event in recording.events("rank")]
    shared = {"run": place, "host": manifest.host or None, "rank": ranks[0] if ranks else None, "torch": manifest.torch}
    counted = [f for f in findings if suppressed_by(recording, f) is None]
    run = {
        **shared,
        "started": manifest.started,
        "command": " ".join(manifest.command),
        "torchsan": manifest.torchsan,
        "python": manifest.python,
        "platform": manifest.platform,
        "status": str(outcome.status),
        "exit": outcome.exit,
        "reasons": list(outcome.reasons),
        "errors": sum(f.severity is Severity.ERROR for f in counted),
        "warnings": sum(f.severity is Severity.WARNING for f in counted),
        "notes": sum(f.severity is Severity.NOTE for f in counted),
        **{name: getattr(coverage, name) for name in COVERED},
    }
    return {
        "runs": [run],
        "findings": [shared | _finding(recording, f) for f in findings],
        "kernels": [row for graph in recording.graphs() for row in _kernels(place, graph)],
    }


def _finding(recording: Reader, finding: Finding) -> Row:
    known = suppressed_by(recording, finding)
    return {
        "id": finding.id,
        "fingerprint": fingerprint(finding),
        "kind": str(finding.kind),
        "severity": str(finding.severity),
        "check": str(finding.check),
        "stage": finding.stage and str(finding.stage),
        "pass": finding.pass_,
        "graph": finding.graph and finding.graph.id,
        "direction": finding.graph and str(finding.graph.direction),
        "kernel": finding.kernel,
        "buffer": finding.buffer,
        "nodes": list(finding.nodes),
        "ops": list(finding.ops),
        "file": finding.source[0].file if finding.source else None,
        "line": finding.source[0].line if finding.source else None,
        "code": finding.source[0].code if finding.source else None,
        "message": finding.message,
        "suppressed": known.reason if known else None,
        **{name: getattr(finding, name, None) for name in ("call", "step", "time")},
    }


def _kernels(place: str, graph: Any) -> list[Row]:
    return [
        {
            "run": place,
            "graph": graph.id,
            "direction": str(graph.direction),
            "nth": kernel.nth,
            "kernel": kernel.name,
            "kind": str(kernel.kind),
            "ops": list(kernel.ops),
            "file": kernel.source[0].file if kernel.source else None,
            "line": kernel.source[0].line if kernel.source else None,
        }
        for kernel in graph.kernels
    ]
