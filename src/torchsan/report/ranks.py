"""The recordings of several ranks as one: whose findings are whose, and where copies drift apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TextIO

from torchsan.checks.replicas import RankSteps, drift, read_steps
from torchsan.errors import RecordingError
from torchsan.recording import Program, Rank, Reader, join_url, rank_folders
from torchsan.recording.recorder import State
from torchsan.records import Coverage, Finding, Severity, Skipped, decode
from torchsan.records.suppression import Suppression
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.findings import Line, clean, count, finding_lines, seen_text, severities_text, shown_place
from torchsan.report.json_report import JsonExporter, about_the_run, finding_values, report_values
from torchsan.report.printing import print_lines
from torchsan.report.terminal import STATUS_STYLES
from torchsan.report.verdict import Status, Verdict, suppressed_by, verdict

_MISSING = 64
"""Ranks without a recording that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A finding, the ranks that have it, and what it is called there."""

    finding: Finding
    ranks: tuple[int, ...]
    ids: tuple[str, ...]
    suppressed: Suppression | None = None


class Ranks:
    """The recordings of the last start of a job, by rank. Those of starts before a restart are only counted."""

    def __init__(self, path: Path, readers: dict[int, Reader], restart: int, unreadable: dict[int, str]) -> None:
        self.path = path
        self.readers = readers
        self.restart = restart
        self.unreadable = unreadable

    @cached_property
    def world(self) -> int:
        """How many ranks there were, by what they say themselves."""
        said = [decode(Rank, e.get("rank")).world for r in self.readers.values() for e in r.events("rank")]
        return max([*said, *(rank + 1 for rank in self.readers)], default=0)

    @cached_property
    def drift(self) -> Finding | None:
        """The first difference between copies."""
        return drift(self._steps)

    @cached_property
    def _steps(self) -> dict[int, RankSteps]:
        return {n: read_steps(r.events("replicas"), r.events("replica-step")) for n, r in self.readers.items()}

    @property
    def compared(self) -> tuple[int, int]:
        """How many steps two ranks or more have recorded, and of how many tensors."""
        steps = [set(s.steps) for s in self._steps.values()]
        common = {key for i, keys in enumerate(steps) for other in steps[i + 1 :] for key in keys & other}
        names = {replica.name for s in self._steps.values() for many in s.replicas.values() for replica in many}
        return len(common), len(names)

    @cached_property
    def findings(self) -> list[Merged]:
        """Drift first, then the findings of all ranks, the same of several ranks as one; numbered anew."""
        same: dict[str, list[tuple[int, Finding]]] = {}
        for rank, reader in self.readers.items():
            for finding in reader.findings():
                place = (finding.stage, finding.kernel, finding.graph, finding.source, finding.ops)
                key = repr((finding.kind, finding.severity, place))
                same.setdefault(key, []).append((rank, finding))
        merged = [
            Merged(
                finding=many[0][1],
                ranks=tuple(dict.fromkeys(r for r, _ in many)),
                ids=tuple(f.id for _, f in many),
                suppressed=suppressed_by(self.readers[many[0][0]], many[0][1]),
            )
            for many in same.values()
        ]
        if self.drift is not None:
            odd = tuple(self.drift.evidence["ranks"]) or tuple(int(r) for r in self.drift.evidence["digests"])
            merged.insert(0, Merged(finding=self.drift, ranks=odd, ids=()))
        return [
            dataclasses.replace(m, finding=dataclasses.replace(m.finding, id=f"F{n}"))
            for n, m in enumerate(merged, start=1)
        ]

    def _missing(self) -> list[str]:
        """What to say of ranks that left no recording. How many there were a recording says, and may say any number."""
        there = {*self.readers, *self.unreadable}
        count = self.world - sum(rank < self.world for rank in there)
        named = list(islice((rank for rank in range(self.world) if rank not in there), _MISSING))
        more = [f"{count - len(named)} more ranks left no recording"] if count > len(named) else []
        return [f"rank {rank} left no recording" for rank in named] + more

    @cached_property
    def verdict(self) -> Verdict:
        """The worst of all ranks; a rank without a recording makes it incomplete."""
        each = {rank: verdict(reader) for rank, reader in self.readers.items()}
        reasons = [f"rank {rank}: {reason}" for rank, v in each.items() for reason in v.reasons]
        reasons += [f"rank {rank}: {why}" for rank, why in self.unreadable.items()]
        missing = self._missing()
        reasons += missing
        if any(m.finding.severity is Severity.ERROR and m.suppressed is None for m in self.findings):
            return Verdict(status=Status.FINDINGS, exit=1, reasons=tuple(reasons))
        # One whose program failed says more than one that only saw too little.
        statuses = sorted({v.exit for v in each.values() if v.exit}, key=lambda status: status == 4)
        if statuses or missing or self.unreadable:
            return Verdict(status=Status.INCOMPLETE, exit=statuses[0] if statuses else 4, reasons=tuple(reasons))
        return Verdict(status=Status.CLEAN, exit=0)


def open_ranks(path: str | Path, url: str | None = None) -> Ranks:
    """Return the recordings of the ranks below `path`, a copy of those at `url` if that is given.

    Raise RecordingError if there is none that can be read.
    """
    folder = Path(path).absolute()
    folders = rank_folders(folder)
    last = max((restart for restart, _ in folders), default=0)
    readers: dict[int, Reader] = {}
    unreadable: dict[int, str] = {}
    for (restart, rank), place in folders.items():
        if restart == last:
            try:
                readers[rank] = Reader(place)
                readers[rank].place = None if url is None else join_url(url, place.name)
            except RecordingError as e:
                unreadable[rank] = str(e)
    if not readers:
        why = "; ".join(unreadable.values())
        raise RecordingError(f"no rank left a recording in {path}{why and f': {why}'}", slug="no-recording")
    return Ranks(folder, readers, last, unreadable)


def print_ranks(ranks: Ranks, stream: TextIO, *, quiet: bool = False) -> None:
    """Print the report of all ranks together."""
    print_lines(list(_lines(ranks, quiet)), stream)


def _lines(ranks: Ranks, quiet: bool) -> Iterator[Line]:
    for merged in ranks.findings:
        yield Line("")
        head, *rest = finding_lines(merged.finding)
        known = f" (suppressed: {clean(merged.suppressed.reason)})" if merged.suppressed else ""
        yield Line(f"{head.text}, {_ranks_text(merged.ranks)}{known}", head.style)
        yield from rest
        if not quiet and merged.ids:
            where = ranks.readers[merged.ranks[0]].path.name
            yield Line(f"    recorded: {clean(merged.ids[0])} of {where}", "dim")
    yield Line("")
    if not quiet:
        yield from _table(ranks)
    outcome = ranks.verdict
    found = severities_text(m.finding for m in ranks.findings) or "no findings"
    yield Line(f"torchsan: {outcome.status}: {found} on {count(ranks.world, 'rank')}", STATUS_STYLES[outcome.status])
    for reason in outcome.reasons:
        yield Line(f"  {clean(reason)}")


def _table(ranks: Ranks) -> Iterator[Line]:
    for rank, reader in ranks.readers.items():
        seen = seen_text(reader)
        yield Line(f"rank {rank}: {verdict(reader).status}: {seen}   torchsan report {clean(shown_place(reader))}")
    steps, tensors = ranks.compared
    if steps and tensors:
        over = count(steps, "optimizer step")
        yield Line(f"copies compared: {count(tensors, 'parameter')} and their gradients over {over}")
    else:
        yield Line("copies compared: none; no optimizer stepped over parameters that several ranks hold copies of")
    if ranks.restart:
        yield Line(f"the job was started again {count(ranks.restart, 'time')}; this is the last start")


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"


class RanksJsonExporter(Exporter[Ranks]):
    """Writes one report over all ranks, in the form of one over a recording."""

    name = JsonExporter.name
    help = JsonExporter.help

    def render(self, subject: Ranks) -> str:
        first = next(iter(subject.readers.values()))
        program = _worst([r.program for r in subject.readers.values()])
        findings = [
            finding_values(
                dataclasses.replace(m.finding, evidence=m.finding.evidence | {"ranks": list(m.ranks)}), m.suppressed
            )
            for m in subject.findings
        ]
        report = report_values(first.manifest, subject.verdict, program, findings, _coverage(subject))
        return json_text(report | about_the_run(list(subject.readers.values())))


RANKS_EXPORTERS: tuple[Exporter[Ranks], ...] = (RanksJsonExporter(),)


def _worst(programs: list[Program]) -> Program:
    return max(programs, key=lambda p: (p.signal is not None, p.exit is None, p.exit or 0))


def _coverage(ranks: Ranks) -> Coverage:
    each = {rank: reader.coverage() for rank, reader in ranks.readers.items()}
    totals = {
        name: sum(getattr(c, name) for c in each.values())
        for name in ("graphs", "kernels", "buffers", "buffers_checked", "ops_checked")
    }
    skipped = (Skipped(what=f"rank {rank}: {s.what}", reason=s.reason) for rank, c in each.items() for s in c.skipped)
    together = State()
    for gap in (gap for coverage in each.values() for gap in coverage.gaps):
        together.add("gap", gap)
    return Coverage(**totals, skipped=tuple(skipped), gaps=together.coverage.gaps)
