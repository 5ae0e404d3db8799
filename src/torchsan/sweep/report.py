"""What a sweep says: on the terminal, for programs, and as a page. Importing it imports no torch."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchsan._version import __version__
from torchsan.errors import UsageError
from torchsan.records import Severity, encode
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.findings import Line, clean, count
from torchsan.report.json_report import finding_values
from torchsan.report.markdown import as_code, as_text, fenced
from torchsan.report.terminal import STATUS_STYLES
from torchsan.report.verdict import Status
from torchsan.sweep.results import JUDGED, Result
from torchsan.sweep.triage import Find, State

SWEEP_SCHEMA = 1
_REASONS = 5
"""How many reasons why programs were not judged are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep that is over, or was stopped: `missing` programs were not run then. `reused` were run before it."""

    command: tuple[str, ...]
    torch: str
    results: tuple[Result, ...]
    finds: tuple[Find, ...]
    seconds: float
    reused: int = 0
    missing: int = 0
    folder: str = ""

    @property
    def status(self) -> Status:
        """Findings if an error is new; else incomplete if nothing was judged, or not all was run."""
        if any(find.counts for find in self.finds):
            return Status.FINDINGS
        judged = any(result.outcome in JUDGED for result in self.results)
        return Status.CLEAN if judged and not self.missing else Status.INCOMPLETE

    @property
    def exit(self) -> int:
        """The exit status that goes with it."""
        return {Status.FINDINGS: 1, Status.INCOMPLETE: 4, Status.CLEAN: 0}[self.status]

    @property
    def outcomes(self) -> dict[str, int]:
        """How many programs ended how."""
        counted = Counter(str(result.outcome) for result in self.results)
        return dict(sorted(counted.items()))


_IN_WORDS = {"baseline": "in the baseline"}


def sweep_text(sweep: Sweep) -> str:
    """Return the last line of a sweep: what its verdict covers."""
    words = {"findings": "with findings"}
    outcomes = ", ".join(f"{n} {words.get(outcome, outcome)}" for outcome, n in sweep.outcomes.items()) or "none run"
    states = Counter(str(f.state) for f in sweep.finds if f.severity is Severity.ERROR)
    found = ", ".join(f"{n} {_IN_WORDS.get(state, state)}" for state, n in sorted(states.items()))
    parts = [f"{count(len(sweep.results), 'program')}: {outcomes}"]
    parts += [f"errors: {found}"] if found else []
    parts += [f"{sweep.reused} from before"] if sweep.reused else []
    parts += [f"{sweep.missing} not run"] if sweep.missing else []
    status = "nothing new" if found and sweep.status is Status.CLEAN else sweep.status
    return f"torchsan: {status}: " + "; ".join(parts)


def sweep_lines(sweep: Sweep, *, quiet: bool = False) -> Iterator[Line]:
    """Yield the report as lines; with `quiet` only what is new, and the verdict."""
    for n, find in enumerate(sweep.finds, start=1):
        if quiet and not find.counts:
            continue
        if find.severity is not Severity.ERROR and find.state is not State.NEW:
            continue
        yield from _find_lines(n, find)
        yield Line("")
    yield Line(clean(sweep_text(sweep)), STATUS_STYLES[sweep.status])
    if not quiet:
        yield from _unjudged_lines(sweep)
    if sweep.folder:
        yield Line(f"results: {clean(sweep.folder)}", "dim")


def _unjudged_lines(sweep: Sweep) -> Iterator[Line]:
    """Why programs were not judged: the most frequent reasons, with a program each."""
    reasons: dict[str, list[str]] = {}
    for result in sweep.results:
        if result.outcome not in JUDGED:
            said = [line for line in result.output.splitlines() if line.strip()] or list(result.reasons)
            reasons.setdefault(said[-1].strip() if said else "", []).append(result.program.name)
    for reason, names in sorted(reasons.items(), key=lambda pair: -len(pair[1]))[:_REASONS]:
        yield Line(f"  not judged: {count(len(names), 'program')}, such as {clean(names[0], 80)}: {clean(reason, 200)}")


def _find_lines(n: int, find: Find) -> Iterator[Line]:
    style = "bold red" if find.counts else "bold"
    reason = f": {find.reason}" if find.reason and find.state not in (State.NEW, State.BASELINE) else ""
    state = f" ({_IN_WORDS.get(find.state, find.state)}{reason})"
    yield Line(clean(f"F{n}: {find.severity}: {find.kind}{state}", 400), style)
    yield Line(f"    {clean(' '.join(find.message.split()), 400)}")
    for label, value in _place(find):
        yield Line(f"    {label}: {clean(value, 300)}", "dim")


def _place(find: Find) -> Iterator[tuple[str, str]]:
    """Where a find is, as names and values."""
    finding = find.finding
    if finding is not None:
        place = {"check": finding.check, "stage": finding.stage, "pass": finding.pass_, "dtype": find.dtype}
        yield "in", ", ".join(f"{name} {value}" for name, value in place.items() if value)
        if finding.ops:
            yield "ops", ", ".join(finding.ops)
    more = f" and {len(find.programs) - 3} more" if len(find.programs) > 3 else ""
    yield "programs", ", ".join(find.programs[:3]) + more
    if find.reproducer:
        yield "reproducer", find.reproducer


def find_values(number: int, find: Find) -> dict[str, Any]:
    """Return a find in the form of the contract: as a finding of `run`, and what a sweep knows beside it."""
    if find.finding is not None:
        values = finding_values(find.finding)
    else:
        empty: dict[str, Any] = dict.fromkeys(("check", "stage", "pass", "graph", "kernel", "buffer"))
        values = empty | {"nodes": [], "ops": [], "source": [], "evidence": {}, "call": None, "step": None}
        values |= {"time": None, "suppressed": None, "evidence": {"output": find.example.output}}
    return values | {
        "id": f"F{number}",
        "kind": find.kind,
        "severity": str(find.severity),
        "message": find.message,
        "fingerprint": find.fingerprint,
        "dtype": find.dtype,
        "state": str(find.state),
        "reason": find.reason,
        "programs": list(find.programs),
        "reproducer": find.reproducer,
        "source_text": find.example.program.text,
    }


def _result_values(result: Result) -> dict[str, Any]:
    names = (
        "address",
        "outcome",
        "seconds",
        "signal",
        "eagerly",
        "reasons",
        "graphs",
        "kernels",
        "buffers",
        "buffers_checked",
    )
    return {"name": result.program.name} | {name: encode(getattr(result, name)) for name in names}


class SweepJsonExporter(Exporter[Sweep]):
    """Writes a sweep for programs; `--baseline` reads it."""

    name = "json"
    help = "write the report for programs to FILE, or to - for stdout; --baseline reads it"

    def render(self, subject: Sweep) -> str:
        totals = ("graphs", "kernels", "buffers", "buffers_checked")
        return json_text(
            {
                "schema": SWEEP_SCHEMA,
                "torchsan": __version__,
                "torch": subject.torch,
                "command": list(subject.command),
                "status": str(subject.status),
                "seconds": round(subject.seconds, 3),
                "findings": [find_values(n, find) for n, find in enumerate(subject.finds, start=1)],
                "programs": [_result_values(result) for result in subject.results],
                "outcomes": subject.outcomes,
                "reused": subject.reused,
                "missing": subject.missing,
                "coverage": {name: sum(getattr(r, name) for r in subject.results) for name in totals},
            }
        )


class SweepPageExporter(Exporter[Sweep]):
    """Writes a sweep as a page to read: HTML or Markdown, by the name of the file."""

    name = "report"
    help = "write a page to FILE.html or FILE.md: what was run, found, known, new and flaky"

    def check(self, target: str) -> None:
        """Raise UsageError for a name that is neither; else as for all."""
        if target != "-" and not target.endswith((".html", ".htm", ".md")):
            raise UsageError(f"--report {target}: expected FILE.html or FILE.md", slug="bad-target")
        super().check(target)

    def write(self, subject: Sweep, target: str, messages: Any) -> None:
        self.put(_html(subject) if target.endswith((".html", ".htm")) else self.render(subject), target)

    def render(self, subject: Sweep) -> str:
        return "".join(f"{line}\n" for line in _markdown(subject))


def _markdown(sweep: Sweep) -> Iterator[str]:
    yield f"# {as_text(sweep_text(sweep))}"
    yield ""
    yield f"{as_code(' '.join(sweep.command))}, PyTorch {as_text(sweep.torch)}, {_minutes(sweep.seconds)}"
    yield ""
    yield "| state | error | warning | note |"
    yield "| --- | --- | --- | --- |"
    for state in State:
        of_state = Counter(f.severity for f in sweep.finds if f.state is state)
        yield f"| {state} | {' | '.join(str(of_state[s]) for s in Severity)} |"
    for n, find in enumerate(sweep.finds, start=1):
        yield ""
        yield f"## F{n}: {find.severity}: {as_text(find.kind)} ({find.state})"
        yield ""
        yield as_text(" ".join(find.message.split()))
        yield ""
        yield from (f"- {label}: {as_text(value, 500)}" for label, value in _place(find))
        if find.reason:
            yield f"- {as_text(find.reason)}"
        if find.counts:
            yield ""
            yield fenced("python", find.example.program.text)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}
pre{background:#f5f5f5;padding:.8em;overflow:auto}
table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3em .7em}
.new{border-left:4px solid #c33;padding-left:1em}.flaky{border-left:4px solid #c90;padding-left:1em}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#222}td,th{border-color:#444}}"""


def _html(sweep: Sweep) -> str:
    """The page as HTML that needs nothing else and runs nothing."""

    def text(value: object) -> str:
        return html.escape(clean(value, 4000))

    rows = "".join(f"<tr><td>{text(name)}</td><td>{n}</td></tr>" for name, n in sweep.outcomes.items())
    parts = []
    for n, find in enumerate(sweep.finds, start=1):
        place = "".join(f"<li>{text(label)}: {text(value)}</li>" for label, value in _place(find))
        reason = f"<p>{text(find.reason)}</p>" if find.reason else ""
        program = f"<pre>{html.escape(find.example.program.text)}</pre>" if find.counts else ""
        parts.append(
            f'<section class="{find.state}" id="F{n}"><h2>F{n}: {find.severity}: {text(find.kind)} ({find.state})</h2>'
            f"<p>{text(' '.join(find.message.split()))}</p><ul>{place}</ul>{reason}{program}</section>"
        )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>torchsan sweep</title>"
        f"<style>{_STYLE}</style>"
        f"</head><body><h1>{text(sweep_text(sweep))}</h1><p><code>{text(' '.join(sweep.command))}</code>, "
        f"PyTorch {text(sweep.torch)}, {_minutes(sweep.seconds)}</p>"
        f"<table><tr><th>outcome</th><th>programs</th></tr>{rows}</table>{''.join(parts)}</body></html>\n"
    )


SWEEP_EXPORTERS: tuple[Exporter[Sweep], ...] = (SweepJsonExporter(), SweepPageExporter())
