"""Where the time of a run went, and which option would have saved how much: `--explain-cost`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from torchsan.options import Options
from torchsan.recording import Reader
from torchsan.recording.spent import COMPILE, OWN
from torchsan.records import Check, Forecast, GraphCost, RunCost, decode
from torchsan.report.findings import Line, clean, count
from torchsan.report.printing import print_lines

_SHOWN = 5
"""How many of the dearest kernels are shown."""
_WORTH = 0.03
"""The share of a run's time that is worth an option."""
_LEAST = 0.005
"""Seconds that are shown."""
_LONGEST = 1e9
"""Seconds that nothing takes."""


def cost_of(recording: Reader) -> RunCost | None:
    """Return where the time went; None if the recording does not have it, as that of a program that was killed."""
    found = recording.events("cost")
    cost = decode(RunCost, found[-1].get("cost")) if found else None
    if cost is None or not all(0 <= s < _LONGEST for s in (cost.seconds, *cost.parts.values(), *cost.later.values())):
        return None
    return cost


def program_seconds(cost: RunCost) -> float:
    """Return what is left for the program itself: threads beside it may have taken more than there was."""
    return max(0.0, cost.seconds - sum(cost.parts.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What another choice of options would have saved, in seconds, about."""

    option: str
    effect: str
    seconds: float


def savings(cost: RunCost, options: Options) -> list[Saving]:
    """Return what options would have saved, the most first; nothing that is not worth it."""
    checks = {check: s for check in options.check if (s := cost.parts.get(check, 0.0))}
    found = []
    if options.budget is None:
        later = sum(cost.later.get(check, 0.0) for check in checks)
        if options.calls is None or (isinstance(options.calls, int) and options.calls > 1):
            found.append(
                Saving(option="--calls 1", effect="checks each graph once for each kind of inputs", seconds=later)
            )
        if Check.VALUES in checks:
            first = checks[Check.VALUES] - cost.later.get(Check.VALUES, 0.0)
            rest = sum(checks.values()) - first
            saved = rest - _SAMPLED * (cost.seconds - rest)
            effect = "looks at all of each first call, then samples launches; values only"
            found.append(Saving(option="--budget 1%", effect=effect, seconds=saved))
    if len(options.check) > 1:
        dearest = max(checks, key=lambda check: checks[check], default=None)
        if dearest is not None:
            rest_of_them = ",".join(check for check in options.check if check != dearest)
            found.append(
                Saving(option=f"--check {rest_of_them}", effect=f"leaves out {dearest}", seconds=checks[dearest])
            )
    worth = [saving for saving in found if saving.seconds >= max(0.05, _WORTH * cost.seconds)]
    return sorted(worth, key=lambda saving: -saving.seconds)


_SAMPLED = 0.01
"""The share of the time that is suggested as a budget."""


def as_json(recording: Reader) -> dict[str, Any] | None:
    """Return the figures as JSON values; None if the recording does not have them."""
    cost = cost_of(recording)
    if cost is None:
        return None
    parts = dict(cost.parts)
    own = {"compile": parts.pop(COMPILE, 0.0), "torchsan": parts.pop(OWN, 0.0)}
    return {
        "seconds": cost.seconds,
        "program": program_seconds(cost),
        **own,
        "checks": parts,
        "later_calls": {part: s for part, s in cost.later.items() if part in parts},
        "savings": [{"option": s.option, "seconds": s.seconds} for s in savings(cost, recording.manifest.options)],
    }


def cost_lines(recording: Reader) -> list[Line]:
    """Return the table of where the time went, the dearest kernels, and what would save how much."""
    cost = cost_of(recording)
    if cost is None:
        return [
            Line(""),
            Line("Where the time went is not in this recording: the program was killed, or goes on still", "dim"),
        ]
    lines = [Line(""), Line(f"Where the time went: {_seconds(cost.seconds)} s", "bold"), *_parts(cost)]
    lines += _dearest(recording, cost)
    saved = savings(cost, recording.manifest.options)
    lines += [
        Line(f"  {s.option}: about {_seconds(s.seconds)} s less ({s.seconds / cost.seconds:.0%}); it {s.effect}")
        for s in saved[:2]
    ]
    if not saved:
        lines.append(Line("  no option would have saved much"))
    return lines


def print_cost(recording: Reader, stream: TextIO) -> None:
    """Print the same."""
    print_lines(cost_lines(recording), stream)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2f}"


def _parts(cost: RunCost) -> Iterator[Line]:
    rows = [("the program", program_seconds(cost), ""), ("compiling it", cost.parts.get(COMPILE, 0.0), "")]
    checks = sorted(
        ((p, s) for p, s in cost.parts.items() if p not in (COMPILE, OWN) and s >= _LEAST), key=lambda item: -item[1]
    )
    for part, seconds in checks:
        later = cost.later.get(part, 0.0)
        note = f"   {_seconds(later)} s of it in later calls" if later >= _LEAST else ""
        rows.append((f"{'check ' if part in list(Check) else '--'}{clean(part, 30)}", seconds, note))
    rows.append(("torchsan itself", cost.parts.get(OWN, 0.0), "   reads the generated code, records"))
    for name, seconds, note in rows:
        share = seconds / cost.seconds if cost.seconds else 0.0
        yield Line(f"  {name:<16} {_seconds(seconds):>7} s {share:>5.0%}{note}")


def _dearest(recording: Reader, cost: RunCost) -> Iterator[Line]:
    """The kernels whose checks took longest."""
    graphs = {(g.id, g.direction): g for g in recording.graphs()}
    sites = [
        (sum(launch.parts.values()), graph, launch)
        for graph in cost.graphs
        for launch in graph.launches
        if (graph.graph, graph.direction) in graphs
    ]
    sites = sorted((s for s in sites if 0 < s[0] < _LONGEST), key=lambda site: -site[0])
    if not sites:
        return
    yield Line(f"The dearest to check of {count(len(sites), 'kernel')}", "bold")
    for seconds, graph, launch in sites[:_SHOWN]:
        kernels = {k.nth: k.name for k in graphs[graph.graph, graph.direction].kernels}
        most = max(launch.parts, key=lambda part: launch.parts[part])
        name = clean(kernels.get(launch.nth, "?"), 60)
        yield Line(f"  {_seconds(seconds):>7} s  {_label(graph)}, {launch.nth} {name}, most of it {clean(most, 30)}")


def _label(graph: GraphCost | Forecast) -> str:
    return f"graph {graph.graph} {graph.direction}"


def launch_checks(recording: Reader) -> dict[tuple[Any, ...], dict[str, float]]:
    """Return what each check took of each launch, by graph, direction and number."""
    cost = cost_of(recording)
    graphs = cost.graphs if cost is not None else ()
    return {
        (g.graph, g.direction, launch.nth): {p: s for p, s in launch.parts.items() if p != OWN and 0 <= s < _LONGEST}
        for g in graphs
        for launch in g.launches
    }


def forecast_text(seen: Forecast) -> str:
    """Return in a line how long checking will take, and what to do about it."""
    took, alone = f"{_seconds(seen.seconds)} s", f"{_seconds(seen.plain)} s of it the kernels themselves"
    if seen.done < seen.launches:
        text = f"checking this call of {_label(seen)} takes about {_seconds(seen.left or 0.0)} s more: "
        text += f"{seen.done} of its {seen.launches} launches took {took}, {alone}"
    else:
        text = f"a checked call of {_label(seen)} takes {took}, {alone}, and "
        more = "every call is" if seen.left is None else f"more are, for about {_seconds(seen.left)} s,"
        text += f"{more} to be checked; --calls 1 would check the first"
    return f"{text}; --budget 1% or fewer checks take less, and --explain-cost tells where the time goes"
