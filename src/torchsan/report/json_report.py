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
from torchsan.records import encode
from torchsan.report.verdict import verdict

REPORT_SCHEMA = 1


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of the report."""
    text = resources.files("torchsan.report").joinpath("schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
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
        "findings": [_finding(f) for f in encode(recording.findings())],
        "coverage": encode(recording.coverage()),
    }


def _finding(value: dict[str, Any]) -> dict[str, Any]:
    source = [{k: line[k] for k in ("file", "line", "code")} for line in value["source"]]
    return {"id": value["id"]} | value | {"source": source}


def check_json_target(target: str) -> None:
    """Raise UsageError if a report cannot be written there, before a long run finds out; `-` is standard output."""
    if target == "-":
        return
    folder = Path(os.path.realpath(target)).parent
    if Path(target).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write --json {target}: {folder} is not a folder one can write to", slug="bad-json")


def write_json(recording: Reader, target: str) -> None:
    """Write the report to a file, at once or not at all, or to standard output for `-`."""
    text = json.dumps(as_json(recording), indent=2, allow_nan=False) + "\n"
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
        raise UsageError(f"cannot write --json {target}: {e.strerror or e}", slug="bad-json") from e
