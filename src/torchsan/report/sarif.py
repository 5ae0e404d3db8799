"""Findings as SARIF 2.1.0, the form that code scanning reads. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from torchsan.recording import Reader
from torchsan.records import Finding, SourceLine, encode
from torchsan.records.finding import fingerprint
from torchsan.report.explanations import explanation, explanation_text, plain_explanation
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.findings import visible
from torchsan.report.verdict import suppressed_by, verdict

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "SRCROOT"


class SarifExporter(Exporter[Reader]):
    """Writes the findings of a recording for code scanning."""

    name = "sarif"
    help = "write the findings as SARIF for code scanning to FILE"

    def render(self, subject: Reader) -> str:
        manifest = subject.manifest
        outcome = verdict(subject)
        invocation = {
            "executionSuccessful": subject.failure is None and not subject.program.status,
            "commandLine": visible(" ".join(manifest.command)),
            "workingDirectory": {"uri": _uri(manifest.cwd)},
            "toolExecutionNotifications": [
                {"level": "warning", "message": {"text": visible(reason)}} for reason in outcome.reasons
            ],
        }
        script = next((word for word in manifest.command if word.endswith(".py")), None)
        log = as_sarif(subject.findings(), manifest.torchsan, manifest.cwd, script, invocation)
        for finding, result in zip(subject.findings(), log["runs"][0]["results"], strict=True):
            if known := suppressed_by(subject, finding):
                result["suppressions"] = [{"kind": "external", "justification": visible(known.reason)}]
        return json_text(log)


def as_sarif(
    findings: Sequence[Finding],
    version: str,
    folder: str,
    script: str | None = None,
    invocation: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return findings as the JSON values of a SARIF log.

    Paths below `folder` are written from there on. A finding without a source line stands at the first line of
    `script`, since code scanning shows nothing that has no place.
    """
    kinds = list(dict.fromkeys(str(f.kind) for f in findings))
    driver = {"name": "torchsan", "version": version, "rules": [_rule(kind) for kind in kinds]}
    elsewhere = (SourceLine(file=script, line=1, code=""),) if script else ()
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": _uri(folder.rstrip("/") + "/")}},
        "results": [_result(f, kinds, f.source or elsewhere, folder) for f in findings],
        **({"invocations": [invocation]} if invocation is not None else {}),
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: str) -> dict[str, Any]:
    found = explanation(kind)
    meaning = found.meaning if found else kind
    plain, markdown = (plain_explanation(kind, found), explanation_text(kind, found)) if found else (kind, kind)
    return {
        "id": kind,
        "shortDescription": {"text": meaning},
        "help": {"text": plain, "markdown": markdown},
        "properties": {"tags": ["pytorch", "torch.compile"]},
    }


def _result(finding: Finding, kinds: list[str], source: Iterable[SourceLine], folder: str) -> dict[str, Any]:
    # A line may be there several times, once for each module that it ran in.
    places = {(line.file, line.line): line for line in source}
    locations = [_location(line, folder) for line in places.values()]
    known = encode(finding)
    place = {name: known[name] for name in ("check", "stage", "pass", "graph", "kernel", "buffer", "nodes", "ops")}
    result = {
        "ruleId": str(finding.kind),
        "ruleIndex": kinds.index(str(finding.kind)),
        "level": str(finding.severity),
        "message": {"text": visible(finding.message)},
        # One place is where the result is shown; the other lines that went into the kernel are related.
        "locations": locations[:1],
        "partialFingerprints": {"torchsan/v1": fingerprint(finding)},
        "properties": {"id": finding.id, **place},
    }
    return result | ({"relatedLocations": locations[1:]} if locations[1:] else {})


def _location(line: SourceLine, folder: str) -> dict[str, Any]:
    path = PurePath(line.file)
    below = path.is_relative_to(folder)
    artifact: dict[str, Any] = {"uri": _uri(str(path.relative_to(folder) if below else path))}
    if below or not path.is_absolute():
        artifact["uriBaseId"] = _ROOT
    region: dict[str, Any] = {"startLine": max(1, line.line)}
    if line.code.strip():
        region["snippet"] = {"text": visible(line.code)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _uri(path: str) -> str:
    text = quote(path.encode("utf-8", "surrogatepass").replace(b"\\", b"/"))
    return f"file://{text}" if text.startswith("/") else text
