"""The report that programs read. Its form is a public contract, and `schema.json` beside this file states it."""

from __future__ import annotations

import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.recording.folder import write_atomically
from torchsan.records import Check, Kind, encode
from torchsan.report.verdict import verdict


def check_target(option: str, target: str) -> None:
    """Raise UsageError if a report cannot be written there, before a long run finds out; `-` is standard output."""
    if target == "-":
        return
    folder = Path(os.path.realpath(target)).parent
    if Path(target).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"cannot write {option} {target}: {folder} is not a folder one can write to", slug="bad-target"
        )


def write_target(option: str, target: str, text: str) -> None:
    """Write a report to a file, at once or not at all, or to standard output for `-`."""
    if target == "-":
        sys.stdout.write(text)
        return
    file = Path(os.path.realpath(target))
    try:
        if file.exists() and not file.is_file():
            file.write_text(text, encoding="utf-8")  # A device or a pipe must be written to, not replaced.
        else:
            write_atomically(file, text)
    except OSError as e:
        raise UsageError(f"cannot write {option} {target}: {e.strerror or e}", slug="bad-target") from e


REPORT_SCHEMA = 1


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
    manifest = recording.manifest
    return {
        "schema": REPORT_SCHEMA,
        "torchsan": manifest.torchsan,
        "torch": manifest.torch,
        "command": encode(manifest.command),
        "status": verdict(recording).status.value,
        "program": encode(recording.program),
        "findings": [finding_as_json(f) for f in encode(recording.findings())],
        "coverage": encode(recording.coverage()),
    }


def finding_as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return an encoded finding in the form of the report."""
    source = [{k: line[k] for k in ("file", "line", "code")} for line in value["source"]]
    return {"id": value["id"]} | value | {"source": source}


def check_json_target(target: str) -> None:
    """Raise UsageError if a report cannot be written there, before a long run finds out; `-` is standard output."""
    check_target("--json", target)


def write_json(recording: Reader, target: str) -> None:
    """Write the report to a file, at once or not at all, or to standard output for `-`."""
    write_values(as_json(recording), target)


def write_values(report: dict[str, Any], target: str) -> None:
    """Write JSON values as `write_json` does."""
    write_target("--json", target, json.dumps(report, indent=2, allow_nan=False) + "\n")
