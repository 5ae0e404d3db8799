"""A kernel's report for programs, for people in a browser, and for code scanning."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from torchsan._version import __version__
from torchsan.kernels.check import KernelReport
from torchsan.records import encode
from torchsan.report.exporter import json_text
from torchsan.report.findings import finding_lines, visible
from torchsan.report.json_report import REPORT_SCHEMA, finding_values
from torchsan.report.sarif import as_sarif as sarif_log
from torchsan.torch_internals.seams import torch_version

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
pre{background:#f6f6f6;padding:.8rem;overflow:auto;border-left:4px solid #bbb}.error{border-color:#c22}
.warning{border-color:#c90}.note{border-color:#29b}table{border-collapse:collapse;font-size:13px}
td,th{border:1px solid #ddd;padding:.2rem .6rem;text-align:left}.bad{color:#c22}"""


def as_json(report: KernelReport) -> dict[str, Any]:
    """Return the report as JSON values: the form of every report of torchsan, and `tried` beside it."""
    return {
        "schema": REPORT_SCHEMA,
        "torchsan": __version__,
        "torch": torch_version() or "",
        "command": ["check-kernel", report.kernel],
        "status": report.status,
        "program": {"exit": None, "signal": None},
        "findings": [finding_values(f) for f in report.findings],
        "coverage": encode(report.coverage),
        "recording": None,
        "options": {},
        "kernels": [],
        "calls": [],
        "timings": [],
        "tried": encode(report.tried),
    }


def as_sarif(report: KernelReport) -> str:
    """Return the findings as a SARIF log."""
    invocation = {
        "executionSuccessful": report.status != "incomplete",
        "commandLine": visible(f"torchsan check-kernel {report.kernel}"),
    }
    script = report.tried["kernel"].get("file") or None
    return json_text(sarif_log(report.findings, __version__, str(Path.cwd()), script, invocation))


def as_html(report: KernelReport) -> str:
    """Return the report as a page that needs nothing else."""
    blocks = []
    for finding in report.findings:
        text = "\n".join(line.text for line in finding_lines(finding))
        blocks.append(f'<pre class="{finding.severity}">{escape(visible(text))}</pre>')
    rows = "".join(_row(t) for t in report.tried["trials"])
    versions = ", ".join(f"{k} {v}" for k, v in report.tried["versions"].items() if v)
    title = f"{escape(visible(report.kernel))}: {report.status}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{''.join(blocks) or '<p>Nothing was found.</p>'}"
        f"<h2>What was tried</h2><table><tr><th>seed</th><th>inputs</th><th>outcome</th></tr>{rows}</table>"
        f"<p>{escape(versions)}<br>digest {escape(report.tried['digest'])}</p></html>\n"
    )


def _row(trial: dict[str, Any]) -> str:
    bad = "" if trial["outcome"] in ("right", "refused") else ' class="bad"'
    return (
        f"<tr><td>{trial['seed']}</td><td>{escape(trial['inputs'])}</td><td{bad}>{escape(trial['outcome'])}</td></tr>"
    )
