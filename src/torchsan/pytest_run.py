"""One test under torchsan: its session, what it says of the test, and the summary over all. Loaded when one asks."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from torchsan.checks import REGISTRY, Observed
from torchsan.errors import TorchsanError, UsageError
from torchsan.options import OF_A_SESSION, Options, Watch, parse_options, resolve_options
from torchsan.recording import Reader, is_url
from torchsan.records import Severity
from torchsan.report.exporter import Exporter
from torchsan.report.findings import clean, count, findings_text, shown_path, times, with_consequences
from torchsan.report.html import plain
from torchsan.session import Session

_REASONS = 5
"""Why things were not checked: how many reasons the summary has lines for."""

_OF_A_TEST = tuple(name for name in OF_A_SESSION if name != "out")


def resolve(config: pytest.Config, marker: pytest.Mark | None) -> Options:
    """Return a test's options: the marker's over the flag's, over the variable, over `[tool.torchsan]`.

    `out` is the folder under which the recordings of this run go. Raise pytest.UsageError for what is not allowed.
    """
    flag = config.getoption("--torchsan")
    try:
        options = resolve_options({"check": flag} if flag else {}, os.environ, config.rootpath)
        if is_url(options.out):
            raise UsageError(f"tests record to a local folder, not to {options.out}", slug="unwritable-out")
        return dataclasses.replace(options, **_of_marker(marker)) if marker is not None else options
    except TorchsanError as e:
        raise pytest.UsageError(str(e)) from e


def _of_marker(marker: pytest.Mark) -> dict[str, Any]:
    given = dict(marker.kwargs)
    if marker.args:
        given["check"] = marker.args[0] if len(marker.args) == 1 else marker.args
    if wrong := sorted(set(given) - set(_OF_A_TEST)):
        raise UsageError(
            f"@pytest.mark.torchsan has no {wrong[0]!r}; it takes {', '.join(_OF_A_TEST)}", slug="bad-option"
        )
    return parse_options("@pytest.mark.torchsan", given)


class CheckedTest:
    """A test with a session of its own. `figures`, once it is closed, is what the report and the summary say."""

    def __init__(self, item: pytest.Item, run: str, marker: pytest.Mark | None) -> None:
        """Prepare a session that records below the folder of this `run`. Raise pytest.UsageError for its options."""
        options = resolve(item.config, marker)
        root = item.config.invocation_params.dir / (options.out or "torchsan-runs") / run
        self.figures: dict[str, Any] | None = None
        self.to_blame = False
        """Whether the test failed because of what torchsan found, and not by itself."""
        out = str(_free(root / _file_name(item.nodeid)))
        # An error fails the test when it is over; it does not end it.
        self.session = Session(dataclasses.replace(options, out=out, fail_fast=False))
        self._item = item
        self._marked = marker is not None

    def open(self) -> None:
        """Start watching; raise what `Session.open` does."""
        self.session.open()

    def failed(self, when: str) -> None:
        """The test raised by itself, in its setup or its call: show beside it what was found until then."""
        self._close()
        if self.session.findings:
            self._item.add_report_section(when, "torchsan", self._text())

    def judge(self) -> str | None:
        """The test ended well: return why torchsan fails it, or None."""
        self._close()
        if any(f.severity is Severity.ERROR for f in self.session.findings):
            self.to_blame = True
            return self._text()
        if self._marked and not self._observed():
            return (
                "torchsan: nothing was compiled by Inductor in this test, which is marked to be checked; "
                "call what torch.compile returned, or remove the marker"
            )
        return None

    def _observed(self) -> bool:
        coverage = self.session.coverage
        eager = all(Observed.OPERATORS in REGISTRY[check].observes for check in self.session.options.check)
        return bool(coverage.graphs or (eager and coverage.ops_checked))

    def _text(self) -> str:
        findings = self.session.findings
        kinds = ", ".join(dict.fromkeys(f.kind.value for f in findings))
        return f"{findings_text(findings, 'finding', f'in this test: {kinds}')}\n\nrecording: {self._place}"

    @property
    def _place(self) -> str:
        return shown_path(self.session.path) if self.session.path is not None else ""

    def _close(self) -> None:
        session = self.session
        session.close()
        findings, coverage, path = session.findings, session.coverage, session.path
        keep = findings or session.options.watch is not Watch.OFF
        if path is not None and not keep:
            shutil.rmtree(path, ignore_errors=True)
            for folder in (path.parent, path.parent.parent):
                with suppress(OSError):  # Other recordings are there.
                    folder.rmdir()
        self.figures = {
            "findings": [f"{f.id}: {f.severity.value}: {f.kind.value}" for f in findings],
            "severities": [f.severity.value for f, _ in with_consequences(findings)],
            "recording": self._place if keep else None,
            "graphs": coverage.graphs,
            "kernels": coverage.kernels,
            "operators": coverage.ops_checked,
            "skipped": [clean(s.reason, 200) for s in coverage.skipped],
        }


_RECORD = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?P<name>[\w.]+):", re.MULTILINE)


def without_logs_of_torch(section: tuple[str, str]) -> tuple[str, str]:
    """Return what pytest captured of a test without what PyTorch logged, as far as it has pytest's own format."""
    name, text = section
    if not name.startswith("Captured log"):
        return section
    starts = [*(record.start() for record in _RECORD.finditer(text)), len(text)]
    records = [text[a:b] for a, b in pairwise(starts)]
    kept = [r for r in records if (found := _RECORD.match(r)) is None or found["name"].split(".")[0] != "torch"]
    return name, text[: starts[0]] + "".join(kept)


class PageExporter(Exporter[Mapping[str, dict[str, Any]]]):
    """Writes the tests that were checked as a web page: what was checked, and the findings whole."""

    name = "torchsan-report"
    help = ""

    def require(self, target: str) -> None:
        """Raise pytest.UsageError if nothing can be written there."""
        try:
            self.check(target)
        except UsageError as e:
            raise pytest.UsageError(str(e)) from e

    def render(self, subject: Mapping[str, dict[str, Any]]) -> str:
        heading = ("test", "graphs", "kernels", "operators", "findings", "recording")
        rows = [
            (
                nodeid,
                *(str(f[name]) for name in ("graphs", "kernels", "operators")),
                "\n".join(f["findings"]) or ("" if f["graphs"] else "nothing was compiled"),
                f["recording"] or "",
            )
            for nodeid, f in sorted(subject.items(), key=lambda item: "error" not in item[1]["severities"])
        ]
        errors = sum(f["severities"].count("error") for f in subject.values())
        status = plain.badge(count(errors, "error") if errors else "no errors", "error" if errors else "right")
        summary = list(summary_lines(subject))[:1]
        found = [(nodeid, f["recording"]) for nodeid, f in subject.items() if f["findings"] and f["recording"]]
        return plain.page(
            "torchsan: tests",
            status,
            *(plain.section(nodeid, *_findings(path)) for nodeid, path in found),
            plain.section("Tests", plain.items(summary), plain.table(heading, rows)),
        )


def _findings(path: str) -> Iterator[str]:
    try:
        for finding, consequences in with_consequences(Reader(path).findings()):
            yield plain.finding(finding, consequences)
    except TorchsanError as e:  # Somebody has removed the recording, or it is of another machine.
        yield plain.items([f"the recording cannot be read: {e}"])


def summary_lines(figures: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the summary of a run from the figures of its tests by node id."""
    counts = Counter(severity for f in figures.values() for severity in f["severities"])
    found = ", ".join(count(counts[s.value], s.value) for s in Severity if counts[s.value])
    totals = ", ".join(
        count(sum(f[f"{what}s"] for f in figures.values()), what) for what in ("graph", "kernel", "operator")
    )
    yield f"{count(len(figures), 'test')} checked: {totals}; findings: {found or 'none'}"
    if nothing := sum(not f["graphs"] for f in figures.values()):
        yield f"{count(nothing, 'test')} compiled nothing"
    skipped = Counter(reason for f in figures.values() for reason in f["skipped"])
    for reason, n in skipped.most_common(_REASONS):
        yield f"not checked: {times(n, reason)}"
    if len(skipped) > _REASONS:
        yield f"not checked: … and {count(len(skipped) - _REASONS, 'reason')} more"
    for nodeid, f in figures.items():
        if f["recording"] is not None:
            yield f"{nodeid}: {'; '.join(f['findings']) or 'watched'}"
            yield f"  recording: {f['recording']}"


def _file_name(nodeid: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", nodeid).strip("._")[-120:] or "test"


def _free(folder: Path) -> Path:
    """`folder`, or it with a number if a test of that name was here: one that runs again, or one named alike."""
    n = 1
    candidate = folder
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate
