"""The text for a bug report."""

from __future__ import annotations

from torchsan._version import __version__
from torchsan.recording import Manifest
from torchsan.records import Check, Exhibit, Finding
from torchsan.report.findings import count
from torchsan.repro.script_assertions import shows_by_itself
from torchsan.repro.verify import Verdict

_MOST_OUTPUT = 3000


def title(finding: Finding, exhibit: Exhibit) -> str:
    """What is wrong, in a line: with those of the blamed operators that the script still has."""
    left = {n.op for n in exhibit.nodes}
    ops = [op for op in finding.ops if op in left] or finding.ops
    where = ", ".join(ops[:4]) or (finding.pass_ or str(finding.stage))
    return f"{finding.kind} ({finding.stage}): {where}"


def readme(
    exhibit: Exhibit, finding: Finding, manifest: Manifest, verdict: Verdict, script: str, loads: tuple[str, ...]
) -> str:
    """Return README.md of a reproducer."""
    lines = [f"# {title(finding, exhibit)}", "", *_verified(finding, verdict), ""]
    shown = verdict.same or finding
    lines += ["## What is wrong", "", shown.message, ""]
    evidence = [str(line) for line in shown.evidence.get("text", ())] if isinstance(shown.evidence, dict) else []
    if {"compiled", "eager"} <= set(shown.evidence):
        lines += [f"Expected (eager): `{shown.evidence['eager']}`", ""]
        lines += [f"Actual (compiled): `{shown.evidence['compiled']}`", ""]
    if evidence:
        lines += ["```text", *evidence, "```", ""]
    lines += ["## How to run", "", "```sh", "python repro.py          # fails"]
    if finding.check is not Check.METADATA:
        lines.append("python repro.py eager    # passes: nothing is compiled")
    if not shows_by_itself(finding):
        lines[-2:] = [f"torchsan run --check {finding.check} repro.py    # PyTorch alone does not notice"]
    lines += ["```", ""]
    if loads:
        lines += [f"It needs {', '.join(loads)}, beside it or installed: the module that registers the operators.", ""]
    lines += ["```python", *script.splitlines(), "```", ""]
    if verdict.output:
        lines += ["What it prints:", "", "```text", verdict.output[-_MOST_OUTPUT:].rstrip(), "```", ""]
    calls = count(len(exhibit.nodes), "operator call")
    places = {"kernel": finding.kernel, "graph pass": finding.pass_, "stage": finding.stage}
    lines += [
        "## Where it comes from",
        "",
        f"- {calls}, cut out of {finding.id} of a run of `{' '.join(manifest.command)}`",
        f"- {', '.join(f'{what} `{name}`' for what, name in places.items() if name is not None)}",
        f"- PyTorch {manifest.torch}, Python {manifest.python}, {manifest.platform}; torchsan {__version__}",
        *(f"- {note}" for note in exhibit.notes),
        "",
    ]
    return "\n".join(lines)


def _verified(finding: Finding, verdict: Verdict) -> list[str]:
    if verdict:
        how = ["run in a fresh process, in another folder, torchsan makes the same finding"]
        if verdict.alone:
            how.append("`python repro.py` fails")
        if verdict.eager:
            how.append("it passes with eager")
        return [f"**Verified**: {'; '.join(how)}."]
    why = []
    if verdict.same is None:
        why.append("run in a fresh process, torchsan does not make the same finding")
    if verdict.alone is False:
        why.append("`python repro.py` does not fail")
    if verdict.eager is False:
        why.append("it does not pass with eager either")
    return [f"**Not verified**: it does not reproduce by itself: {'; '.join(why)}."]
