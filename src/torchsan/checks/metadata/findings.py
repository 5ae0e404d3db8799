"""The findings of the metadata check: one an operator and kind of mismatch, recorded at once, counted to the end."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchsan.errors import FindingsError
from torchsan.records import Check, Finding, GraphRef, Kind, Severity, SourceLine, Stage

if TYPE_CHECKING:
    from torchsan.checks.exhibits import Build, Exhibits
    from torchsan.recording import Recorder

_RANK = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One mismatch, as it was seen once."""

    operator: str
    kind: Kind
    severity: Severity
    stage: Stage
    message: str
    call: str
    ops: tuple[str, ...] | None = None
    """The operators to name, where `operator` is only what the report is about."""
    differences: tuple[dict[str, Any], ...] = ()
    fix: str = ""
    against: str = ""
    """What it was compared with, as the documentation of `evidence` lists it: `fake`, `schema`, `graph`, …"""
    source: tuple[SourceLine, ...] = ()
    graph: GraphRef | None = None
    kernel: str | None = None
    buffer: str | None = None
    nodes: tuple[str, ...] = ()
    exhibit: Build | None = field(default=None, repr=False, compare=False)
    """Makes what a reproducer of it needs, while the call is at hand."""


@dataclass(slots=True)
class _Entry:
    finding: Finding
    count: int = 1
    seen: dict[str, int] = field(default_factory=dict)


class OperatorFindings:
    """Merges reports into findings. Thread-safe. With `fail_fast` the first error raises FindingsError."""

    def __init__(self, sink: Recorder, *, fail_fast: bool = False, exhibits: Exhibits | None = None) -> None:
        self._sink = sink
        self._exhibits = exhibits
        self._fail_fast = fail_fast
        self._entries: dict[tuple[str, Kind], _Entry] = {}
        self._lock = threading.Lock()

    def report(self, report: Report) -> None:
        """Record a mismatch; the same operator and kind again raises the count, and the severity if it is graver."""
        with self._lock:
            key = (report.operator, report.kind)
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(self._sink.finding(_finding(report)))
                entry.seen[str(report.stage)] = 1
                graver = True
            else:
                graver = self._again(entry, report)
            finding = entry.finding
        if graver and self._exhibits is not None and report.exhibit is not None:
            self._exhibits.keep(finding, report.exhibit)
        if self._fail_fast and report.severity is Severity.ERROR:
            raise FindingsError(f"{finding.message}\n  {report.call}\n  {report.fix}", slug="findings")

    def knows(self, operator: str, kind: Kind) -> bool:
        """Whether this was reported of the operator."""
        with self._lock:
            return (operator, kind) in self._entries

    def count(self, report: Report, stage: Stage) -> None:
        """What was reported happened again, at this stage."""
        with self._lock:
            entry = self._entries[report.operator, report.kind]
            entry.count += 1
            entry.seen[str(stage)] = entry.seen.get(str(stage), 0) + 1
            evidence = entry.finding.evidence
            evidence.update(count=entry.count, seen=dict(entry.seen))
            evidence["text"] = _text(evidence)
        if self._fail_fast and report.severity is Severity.ERROR:
            raise FindingsError(f"{report.message}\n  {report.call}\n  {report.fix}", slug="findings")

    def _again(self, entry: _Entry, report: Report) -> bool:
        """Count it; return whether it is graver than what was known."""
        new_place = str(report.stage) not in entry.seen
        # The dispatcher has counted those calls already.
        if report.against not in ("compiled", "graph") or new_place:
            entry.count += 1
            entry.seen[str(report.stage)] = entry.seen.get(str(report.stage), 0) + 1
        graver = _RANK[report.severity] > _RANK[entry.finding.severity]
        base = _finding(report) if graver else entry.finding
        known = entry.finding.evidence["differences"]
        differences = [*known, *(d for d in report.differences if d not in known)]
        evidence = base.evidence | {"count": entry.count, "seen": dict(entry.seen), "differences": differences}
        evidence["text"] = _text(evidence)
        entry.finding = dataclasses.replace(base, id=entry.finding.id, evidence=evidence)
        if graver or new_place or len(differences) > len(known):
            self._sink.amend(entry.finding)
        return graver

    def close(self) -> None:
        """Record the final counts."""
        with self._lock:
            for entry in self._entries.values():
                if entry.count > 1:
                    self._sink.amend(entry.finding)


def _text(evidence: dict[str, Any]) -> list[str]:
    """The evidence as people read it: the call, both sides of each difference, what to change, how often."""
    lines = [evidence["call"]] if evidence["call"] else []
    lines += [
        f"{d['what']}: {d['field']} is {d['real']}, {d['against']}: {d['believed']}" for d in evidence["differences"]
    ]
    lines.append(f"to do: {evidence['fix']}")
    if evidence["count"] > 1:
        lines.append(f"in {evidence['count']} calls: {', '.join(f'{n} {s}' for s, n in evidence['seen'].items())}")
    return lines


def _finding(report: Report) -> Finding:
    evidence = {
        "call": report.call,
        "against": report.against,
        "differences": list(report.differences),
        "fix": report.fix,
        "count": 1,
        "seen": {str(report.stage): 1},
    }
    return Finding(
        kind=report.kind,
        severity=report.severity,
        check=Check.METADATA,
        stage=report.stage,
        message=report.message,
        ops=report.ops if report.ops is not None else (report.operator,),
        source=report.source,
        graph=report.graph,
        kernel=report.kernel,
        buffer=report.buffer,
        nodes=report.nodes,
        evidence=evidence | {"text": _text(evidence)},
    )
