"""A finding as lines of text, the same on a terminal and in an exception."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torchsan.errors import FindingsError
from torchsan.recording import Reader
from torchsan.recording.folder import Manifest
from torchsan.records import Coverage, Finding, Severity, SourceLine
from torchsan.records.finding import DEFAULT_CHECKS
from torchsan.records.suppression import Suppression


def shown_path(path: Path) -> str:
    """Return a path from the current folder on if it lies below that, else the whole of it."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def shown_place(recording: Reader) -> str:
    """Return the path of a recording, or its URL."""
    return recording.place or shown_path(recording.path)


_WIDTH = 8
_MOST_MODULES = 3
_LONGEST, _MOST_LINES = 200_000, 2000
"""Characters and lines of one text. A recording can hold millions of either."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `style` is a rich style, and never changes the text."""

    text: str
    style: str = ""


_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}


def clean(text: object, limit: int = 2000) -> str:
    """Return text from a recording as it can be shown: one line, no control characters, not endless.

    A recording comes from elsewhere: what it says must not move the cursor or colour the terminal. Nor be a command in
    a job of GitHub Actions, which obeys any line of its log that begins as one, indented or not.
    """
    shown = "".join(c if c.isprintable() else _escape(c) for c in str(text)[: limit + 1])
    if in_github_actions(os.environ):
        shown = re.sub(r"^(\s*:)(?=:)", r"\1 ", shown).replace("##[", "# #[")
    return shown if len(shown) <= limit else shown[:limit] + "…"


def in_github_actions(environ: Mapping[str, str]) -> bool:
    """Return whether this is a job of GitHub Actions, by the variable it sets."""
    return environ.get("GITHUB_ACTIONS", "").lower() == "true"


def _escape(char: str) -> str:
    return "    " if char == "\t" else char.encode("unicode_escape").decode()


_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control characters, those that turn the direction of text or are not seen, and lone surrogates, which UTF-8 lacks."""


def visible(text: str) -> str:
    """Return text of any length and many lines with what cannot be seen written out: source can look like another."""
    parts = (text[at : at + _AT_ONCE] for at in range(0, len(text), _AT_ONCE))
    return "".join(_INVISIBLE.sub(lambda found: _escape(found[0]), part) for part in parts)


_AT_ONCE = 1 << 16
"""Characters: of a text that is all control characters, the parts take a hundred times its memory."""


def count(n: int, what: str) -> str:
    """Return `1 kernel`, `2 kernels`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def times(n: int, what: str) -> str:
    """Return `what`, or `2 × what`."""
    return what if n == 1 else f"{n} × {what}"


def severities_text(findings: Iterable[Finding]) -> str:
    """Return how many there are of each severity, as in `1 error, 2 notes`; empty if there are none.

    What follows from another finding is told beside them, as in `1 error, and 2 that follow from it`.
    """
    grouped = with_consequences(list(findings))
    counts = Counter(f.severity for f, _ in grouped)
    text = ", ".join(count(counts[s], s.value) for s in Severity if counts[s])
    follow = sum(len(more) for _, more in grouped)
    verb = "follows" if follow == 1 else "follow"
    return f"{text}, and {follow} that {verb} from {'it' if len(grouped) == 1 else 'them'}" if follow else text


def session_text(findings: Sequence[Finding], coverage: Coverage) -> str:
    """Return what a session found and looked at, in one line."""
    looked = f"{count(coverage.kernels, 'kernel')} in {count(coverage.graphs, 'graph')}"
    found = severities_text(findings) or ("no findings" if coverage.graphs or coverage.ops_checked else "nothing yet")
    return f"{found}; {looked}, {coverage.buffers_checked} of {count(coverage.buffers, 'buffer')} checked"


def seen_text(recording: Reader) -> str:
    """Return what `clean` covers, in short, as in `4 of 4 kernels, 9 of 10 buffers, 2 of 60 calls checked`.

    By which checks, if not by all that are on by default: `1 of 1 call checked by values`.
    """
    coverage, calls = recording.coverage(), recording.calls()
    if not coverage.kernels:
        return f"0 kernels in {count(coverage.graphs, 'graph')}"
    parts = [
        f"{recording.kernels_checked()} of {count(coverage.kernels, 'kernel')}",
        f"{coverage.buffers_checked} of {count(coverage.buffers, 'buffer')}",
    ]
    if calls:
        parts.append(f"{sum(c.checked for c in calls)} of {count(sum(c.seen for c in calls), 'call')}")
    checks = recording.manifest.options.check
    by = "" if not checks or set(checks) >= set(DEFAULT_CHECKS) else f" by {', '.join(checks)}"
    return f"{', '.join(parts)} checked{by}"


def skipped_by_reason(coverage: Coverage) -> list[tuple[str, list[str]]]:
    """Return each reason why something was not checked with what that was, the most frequent first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for skipped in coverage.skipped:
        groups[skipped.reason].append(skipped.what)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def render_findings(findings: Iterable[Finding]) -> str:
    """Return the findings as plain text."""
    grouped = with_consequences(list(findings))
    return "\n\n".join("\n".join(line.text for line in finding_lines(f, consequences=more)) for f, more in grouped)


def findings_text(findings: Sequence[Finding], noun: str, where: str) -> str:
    """Return how many there are and where, as in `torchsan: 2 findings in compiled code`, and the findings."""
    n = len(with_consequences(findings))
    return f"torchsan: {count(n, noun)} {where}\n\n{render_findings(findings)}"


def raise_errors(findings: Iterable[Finding], text: Callable[[Sequence[Finding]], str]) -> None:
    """Raise FindingsError, with what `text` makes of them, if there are findings of severity `error`."""
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if errors:
        raise FindingsError(text(errors), slug="findings")


def began_at(manifest: Manifest) -> float | None:
    """Return when a run began, in seconds since 1970; None if its manifest does not say."""
    try:
        return datetime.fromisoformat(manifest.started).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def when_text(finding: Finding, began: float | None = None) -> str:
    """Return in which call and step a finding was made, and how long after the run `began`; empty if nobody knows."""
    parts = []
    if finding.call is not None:
        parts.append(f"call {finding.call}" + (f" of graph {finding.graph.id}" if finding.graph else ""))
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    if finding.time is not None and began is not None and finding.time >= began:
        parts.append(f"{finding.time - began:.1f} s after the start")
    times = finding.evidence.get("times")
    if type(times) is int and parts:
        parts.append(f"seen {times} times")
    return ", ".join(parts)


def finding_lines(
    finding: Finding,
    suppressed: Suppression | None = None,
    *,
    began: float | None = None,
    consequences: Iterable[Finding] = (),
    most: int | None = 8,
) -> Iterator[Line]:
    """Yield a finding: what is wrong, where in the source, the evidence, where in the compiled program, and when.

    Of lines of source and of names, so many are shown at `most`.
    """
    head = f"{finding.id or 'F?'}: {finding.severity}: {finding.kind}"
    yield Line(clean(head) if suppressed is None else clean(f"{head} (suppressed)"), _STYLES[finding.severity])
    if suppressed is not None:
        yield Line(f"    suppressed: {clean(suppressed.reason)}", "dim")
    for text in finding.message[:_LONGEST].splitlines()[:_MOST_LINES]:
        yield Line(f"    {clean(text)}")
    yield from source_lines(finding.source, most)
    yield from _evidence(finding.evidence)
    place = {
        "kernel": finding.kernel,
        "buffer": finding.buffer,
        "graph": finding.graph and f"{finding.graph.id} {finding.graph.direction}",
        "stage": finding.stage,
        "pass": finding.pass_,
    }
    if any(place.values()):
        yield from field_lines("in", ", ".join(f"{name} {value}" for name, value in place.items() if value), "dim")
    if when := when_text(finding, began):
        yield from field_lines("when", when, "dim")
    for name, values in (("nodes", finding.nodes), ("ops", finding.ops)):
        if values:
            more = f" … and {len(values) - most} more" if most is not None and len(values) > most else ""
            yield from field_lines(name, ", ".join(values[:most]) + more, "dim")
    for each in consequences:
        message = f"{each.id} follows from {finding.id}: {each.kind}: {' '.join(each.message.split())}"
        yield Line(f"    {clean(message, 200)}{_first_place(each)}", "dim")


def with_consequences(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Return each finding with those that follow from it, which are not listed by themselves then."""
    causes: dict[str, tuple[Finding, list[Finding]]] = {}
    listed: list[tuple[Finding, list[Finding]]] = []
    for finding in findings:
        cause = causes.get(str(finding.evidence.get("follows")))
        if cause is not None:
            cause[1].append(finding)
        else:
            listed.append((finding, []))
            causes.setdefault(finding.id, listed[-1])
    return listed


def finding_line(finding: Finding) -> Line:
    """A finding in one line: what is wrong, and where."""
    message = " ".join(finding.message.split())
    follows = f" follows from {finding.evidence['follows']}" if finding.evidence.get("follows") else ""
    text = f"{finding.id}{follows}: {finding.severity}: {finding.kind}: {message}"
    return Line(f"{clean(text, 160)}{_first_place(finding)}")


def _first_place(finding: Finding) -> str:
    return clean(f"  ({_location(finding.source[0])})", 80) if finding.source else ""


def _evidence(evidence: dict[str, Any]) -> Iterator[Line]:
    """The evidence as its check puts it (`text`), or else field by field."""
    text = evidence.get("text")
    if isinstance(text, list):
        for line in text[:_MOST_LINES]:
            yield Line(f"    {clean(line)}")
        return
    for name, value in evidence.items():
        if name in ("picture", "launch"):  # For reports that draw.
            continue
        yield from field_lines(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def source_lines(source: Iterable[SourceLine], most: int | None = None) -> Iterator[Line]:
    """Yield where in the user's program, with the line of code; each line once, with the modules that it ran in."""
    modules: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for line in source:
        modules[_location(line), line.code.strip()] |= {line.module: None} if line.module else {}
    for (place, code), names in list(modules.items())[:most]:
        more = ", …" if len(names) > _MOST_MODULES else ""
        yield Line(f"    at {clean(place + in_module(', '.join([*names][:_MOST_MODULES])) + more)}", "bold")
        if code:
            yield Line(f"        {clean(code)}", "cyan")
    if most is not None and len(modules) > most:
        yield Line(f"    … and {count(len(modules) - most, 'line')} more", "dim")


def in_module(module: str) -> str:
    """Where in the model, as ` in layers.0`; of a `Sequential` that is compiled by itself, ` in module 0`."""
    return f" in {'module ' if module[0].isdigit() else ''}{module}" if module else ""


def _location(line: SourceLine) -> str:
    return f"{shown_file(line.file)}:{line.line}"


def shown_file(file: str) -> str:
    """Return the path of a file of source: from the current folder on, or, of an installed package, from there on."""
    shown = shown_path(Path(file))
    _, installed, within = shown.replace("\\", "/").rpartition("/site-packages/")
    return within if installed else shown


def field_lines(name: str, value: str, style: str = "") -> Iterator[Line]:
    """Yield a value with its name in front of it."""
    for n, text in enumerate(value[:_LONGEST].splitlines()[:_MOST_LINES] or [""]):
        label = f"{clean(name)}:" if n == 0 else ""
        yield Line(f"    {label:<{_WIDTH}} {clean(text)}", style)
