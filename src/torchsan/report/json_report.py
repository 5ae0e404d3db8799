"""The report that programs read. Its form is a public contract, and `schema.json` beside this file states it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from torchsan.recording import Program, Reader
from torchsan.recording.folder import Manifest
from torchsan.records import Check, Coverage, Finding, Kind, encode
from torchsan.records.finding import fingerprint
from torchsan.records.suppression import Suppression
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.verdict import Verdict, suppressed_by, verdict

REPORT_SCHEMA = 1


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
    return report_values(recording.manifest, verdict(recording), recording.program, findings, recording.coverage())


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
    source = [{k: line[k] for k in ("file", "line", "code")} for line in value["source"]]
    known = {"fingerprint": fingerprint(finding), "suppressed": suppressed.reason if suppressed else None}
    return {"id": value["id"]} | value | {"source": source} | known
