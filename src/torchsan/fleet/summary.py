"""One report over many recordings: the same finding once, with where it was seen, and which hosts stand out."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Any

from torchsan._version import __version__
from torchsan.fleet.rows import COVERED, Row
from torchsan.fleet.tables import Tables
from torchsan.report.exporter import Exporter, json_text
from torchsan.report.findings import Line, clean, count
from torchsan.report.terminal import STATUS_STYLES
from torchsan.report.verdict import Status

GROUPS = """
SELECT fingerprint,
       arg_min(kind, run) AS kind, min(severity) AS severity, arg_min("check", run) AS "check",
       arg_min(stage, run) AS stage, arg_min(pass, run) AS pass, arg_min(kernel, run) AS kernel,
       arg_min(ops, run) AS ops, arg_min(nodes, run) AS nodes, arg_min(message, run) AS message,
       arg_min(file, run) AS file, arg_min(line, run) AS line, arg_min(code, run) AS code,
       count(DISTINCT run) AS runs, count(*) AS times,
       list_sort(list(DISTINCT host) FILTER (host IS NOT NULL)) AS hosts,
       list_sort(list(DISTINCT rank) FILTER (rank IS NOT NULL)) AS ranks,
       list_sort(list(DISTINCT torch)) AS versions,
       min(step) AS first_step, max(step) AS last_step,
       list_sort(list(DISTINCT run || ' ' || id))[:5] AS examples
FROM findings WHERE suppressed IS NULL GROUP BY fingerprint
ORDER BY severity, runs DESC, fingerprint
"""
"""The findings that are the same by fingerprint. `error` sorts before `note` and `warning`: only errors come first."""

_HOSTS = "SELECT host, count(*) AS runs FROM runs WHERE host IS NOT NULL GROUP BY host"
_HITS = """
SELECT fingerprint, host, count(DISTINCT run) AS runs FROM findings WHERE host IS NOT NULL
GROUP BY fingerprint, host ORDER BY runs DESC, host
"""

_SURE = 1e-3
"""How probable it may be, over all hosts, that a host stands out by chance."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What many runs say together: `runs` counts them by status, `groups` are rows of GROUPS with `standing_out`."""

    runs: dict[str, int]
    groups: list[Row]
    reasons: list[Row]
    coverage: Row
    hosts: int

    @property
    def status(self) -> Status:
        """Findings if there is an error anywhere; else incomplete if a run is."""
        if any(group["severity"] == "error" for group in self.groups):
            return Status.FINDINGS
        return Status.CLEAN if set(self.runs) == {"clean"} else Status.INCOMPLETE

    @property
    def exit(self) -> int:
        """The exit status that goes with it."""
        return {Status.FINDINGS: 1, Status.INCOMPLETE: 4, Status.CLEAN: 0}[self.status]


def summarize_fleet(tables: Tables) -> Fleet:
    """Return what the runs in the tables say together."""
    runs = {row["status"]: row["n"] for row in tables.rows("SELECT status, count(*) AS n FROM runs GROUP BY status")}
    of_host = {row["host"]: row["runs"] for row in tables.rows(_HOSTS)}
    hits: dict[str, dict[str, int]] = defaultdict(dict)
    for row in tables.rows(_HITS):
        hits[row["fingerprint"]][row["host"]] = row["runs"]
    groups = [g | {"standing_out": list(_standing_out(of_host, hits[g["fingerprint"]]))} for g in tables.rows(GROUPS)]
    order = {"error": 0, "warning": 1, "note": 2}
    groups.sort(key=lambda group: (order.get(group["severity"], 3), -group["runs"], group["fingerprint"]))
    reasons = tables.rows(
        "SELECT reason, count(*) AS runs, min(run) AS example FROM "
        "(SELECT run, unnest(reasons) AS reason FROM runs WHERE status = 'incomplete') GROUP BY reason ORDER BY 2 DESC"
    )
    sums = ", ".join(f"coalesce(sum({c}), 0)::BIGINT AS {c}" for c in COVERED)
    (coverage,) = tables.rows(f"SELECT {sums} FROM runs")
    (hosts,) = tables.rows("SELECT count(DISTINCT host) AS n FROM runs")
    return Fleet(runs, groups, reasons, coverage, hosts["n"])


def _standing_out(of_host: dict[str, int], hit: dict[str, int]) -> Iterator[Row]:
    """The hosts that have a finding more often than chance allows, by Fisher's exact test against all others."""
    runs, hits = sum(of_host.values()), sum(hit.values())
    for host, here in hit.items():
        others, elsewhere = runs - of_host[host], hits - here
        if others and _by_chance(of_host[host], here, runs, hits) < _SURE / len(of_host):
            yield {"host": host, "runs": here, "of": of_host[host], "elsewhere": elsewhere, "others": others}


def _by_chance(runs: int, hits: int, all_runs: int, all_hits: int) -> float:
    """How probable as many hits or more are among `runs` if all runs are alike (hypergeometric)."""
    total = comb(all_runs, runs)
    ways = sum(comb(all_hits, k) * comb(all_runs - all_hits, runs - k) for k in range(hits, min(runs, all_hits) + 1))
    return ways / total


def fleet_lines(fleet: Fleet, *, quiet: bool = False) -> Iterator[Line]:
    """Yield the report as lines."""
    for n, group in enumerate(fleet.groups, start=1):
        yield Line("")
        yield from _group_lines(n, group, fleet)
    yield Line("")
    total = sum(fleet.runs.values())
    by_status = ", ".join(f"{fleet.runs[s]} {s}" for s in ("clean", "findings", "incomplete") if s in fleet.runs)
    seen = f"{fleet.coverage['buffers_checked']} of {fleet.coverage['buffers']} buffers checked"
    yield Line(
        f"torchsan: {fleet.status}: {count(total, 'run')} on {count(fleet.hosts, 'host')}: {by_status}; "
        f"{count(fleet.coverage['kernels'], 'kernel')} in {count(fleet.coverage['graphs'], 'graph')}, {seen}",
        STATUS_STYLES[fleet.status],
    )
    for row in fleet.reasons if not quiet else fleet.reasons[:3]:
        yield Line(f"  {count(row['runs'], 'run')}: {clean(row['reason'], 300)}  ({clean(row['example'], 200)})")


def _group_lines(n: int, group: Row, fleet: Fleet) -> Iterator[Line]:
    styles = {"error": "bold red", "warning": "bold yellow"}
    yield Line(f"F{n}: {group['severity']}: {clean(group['kind'])}", styles.get(group["severity"], "bold cyan"))
    yield Line(f"    {clean(' '.join(group['message'].split()), 400)}")
    if group["file"]:
        yield Line(f"    at {clean(group['file'])}:{group['line']}", "bold")
        yield Line(f"        {clean((group['code'] or '').strip(), 200)}", "cyan")
    where = [f"in {group['runs']} of {count(sum(fleet.runs.values()), 'run')}"]
    if group["hosts"]:
        where.append(f"on {len(group['hosts'])} of {count(fleet.hosts, 'host')} ({_some(group['hosts'])})")
    if group["ranks"]:
        where.append(f"ranks {_some(group['ranks'])}")
    if group["first_step"] is not None:
        where.append(f"steps {group['first_step']} to {group['last_step']}")
    yield Line(f"    {', '.join(where)}, torch {_some(group['versions'])}")
    for host in group["standing_out"]:
        there = f"{host['runs']} of its {count(host['of'], 'run')}"
        elsewhere = f"elsewhere {host['elsewhere']} of {host['others']}"
        yield Line(f"    {clean(host['host'])} stands out: {there}, {elsewhere}", "bold")
    for example in group["examples"][:3]:
        run, _, name = example.rpartition(" ")
        yield Line(f"    torchsan report --finding {clean(name)} {clean(shlex.quote(run))}", "dim")


def _some(values: list[Any]) -> str:
    shown = ", ".join(clean(value, 60) for value in values[:4])
    return f"{shown} and {len(values) - 4} more" if len(values) > 4 else shown


def _values(group: Row) -> Row:
    """A group with its source as the report of one run has it, and lists where there is nothing."""
    line = {name: group[name] for name in ("file", "line", "code")}
    lists = {name: group[name] or [] for name in ("hosts", "ranks", "ops", "nodes")}
    rest = {name: value for name, value in group.items() if name not in line}
    return rest | lists | {"source": [line] if line["file"] is not None else []}


class FleetJsonExporter(Exporter[Fleet]):
    """Writes the report over many runs for programs."""

    name = "json"
    help = "write the report for programs to FILE, or to - for stdout"

    def render(self, subject: Fleet) -> str:
        return json_text(
            {
                "schema": 2,
                "torchsan": __version__,
                "status": str(subject.status),
                "runs": {"total": sum(subject.runs.values()), "hosts": subject.hosts, **subject.runs},
                "findings": [{"id": f"F{n}"} | _values(group) for n, group in enumerate(subject.groups, start=1)],
                "incomplete": subject.reasons,
                "coverage": subject.coverage,
            }
        )


FLEET_EXPORTERS: tuple[Exporter[Fleet], ...] = (FleetJsonExporter(),)
