"""The results as text: lines for the terminal, and the page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.row import Comparison, Growth, Limit, Record, Row, Skipped, compared

__all__ = ["Section", "described", "figure", "judged", "lines", "page", "verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One benchmark: its title, what it measures in words, what came of it, and how a repetition failed if one did."""

    name: str
    title: str
    about: str
    repetitions: int
    records: list[Record] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def comparisons(self) -> list[Comparison]:
        """The rows, those of all repetitions together."""
        return compared([record for record in self.records if isinstance(record, Row)])

    @property
    def limits(self) -> list[Limit]:
        """What a side cannot do, each said once."""
        return list(dict.fromkeys(record for record in self.records if isinstance(record, Limit)))

    @property
    def skipped(self) -> list[Skipped]:
        """What was not measured, each said once."""
        return list(dict.fromkeys(record for record in self.records if isinstance(record, Skipped)))

    @property
    def growths(self) -> list[Growth]:
        """How things grow, as the last repetition has it."""
        found = [record for record in self.records if isinstance(record, Growth)]
        return list({(growth.of, growth.by): growth for growth in found}.values())


def figure(value: float, unit: str) -> str:
    """Return a figure to three digits, without an exponent; without a unit it is a number of things."""
    if not unit:
        return f"{value:g}"
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    digits = 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f}"


def described(comparison: Comparison, *, spread: bool = True) -> str:
    """Return what is judged, with its spread: `1.86× (1.80 to 1.95)`, `≥ 2.1×` where the peer was ended."""
    unit = "×" if comparison.is_ratio else comparison.first.unit
    low, high = (figure(value, unit) for value in comparison.spread)
    least = "≥ " if comparison.ended else ""
    between = f" ({low} to {high})" if spread and len(comparison.rows) > 1 else ""
    return f"{least}{_amount(comparison.value, unit)}{between}"


def judged(comparison: Comparison) -> str:
    """Return the goal, such as `≤ 1.5×`, or nothing without one."""
    goal = comparison.first.goal
    if goal is None:
        return ""
    unit = "×" if comparison.is_ratio else f" {comparison.first.unit}"
    return f"{'≤' if comparison.at_most else '≥'} {goal:g}{unit}".rstrip()


def verdict(comparison: Comparison) -> str:
    """Return whether the goal is met, in a word; open where the peer was ended before the goal was reached."""
    match comparison.met:
        case None:
            return ""
        case False if comparison.ended:
            return "open"
        case met:
            return "met" if met else "missed"


def lines(section: Section) -> Iterator[str]:
    """Return what came of a benchmark, for the terminal."""
    for comparison in section.comparisons:
        yield _line(comparison)
    for skipped in section.skipped:
        yield f"not measured: {skipped.what}, since {skipped.why}".replace("`", "")
    for limit in section.limits:
        yield f"{limit.who} cannot {limit.cannot}".replace("`", "")


def _line(comparison: Comparison) -> str:
    row = comparison.first
    beside = f", beside {row.peer}" if row.peer else ""
    words = [f"{row.what}{beside}".replace("`", ""), described(comparison)]
    if comparison.theirs is not None:
        words.append(f"[{figure(comparison.ours, row.unit)} and {_amount(comparison.theirs, row.unit)}]")
    words += [f"goal {judged(comparison)}: {verdict(comparison)}"] if judged(comparison) else []
    return "  ".join(words) + (f"  ({row.note})".replace("`", "") if row.note else "")


def page(sections: Sequence[Section], machine: Sequence[str]) -> str:
    """Return the page, in Markdown; `machine` says what it was measured on and how."""
    all_of_them = [comparison for section in sections for comparison in section.comparisons]
    with_goals = [verdict(c) for c in all_of_them if c.met is not None]
    met = sum(word == "met" for word in with_goals)
    parts = [_HEAD, "\n".join(f"- {fact}" for fact in machine)]
    parts.append(f"{met} of {len(with_goals)} goals are met. What misses one has the reason below its table.")
    parts.append("![Every ratio with its spread and its goal](benchmarks.svg)")
    for section in sections:
        parts += _section(section)
    parts += ["## What each side cannot do", *_limits(sections)]
    return "\n\n".join(parts) + "\n"


_HEAD = """# Benchmarks

% Written by `make bench`; changes by hand are lost.

torchsan beside what PyTorch offers, in one run on one machine. Only ratios last: a machine of another kind gives other
seconds. Each figure is the least of several rounds in which the sides take turns, since everything that disturbs adds
time. The whole is repeated in fresh processes: a row shows the median, and in brackets the least and the greatest of
what is judged. A goal is met if the median meets it, and open where the other side was ended before it was known.

% not run: takes the better part of an hour
```console
$ make bench
$ make bench-quick
```

`make bench` writes this page; `make bench-quick` prints smaller measurements, in minutes."""


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    times = "once" if section.repetitions == 1 else f"{section.repetitions} times"
    yield f"{section.about}\n\n`python -m benchmarks {section.name}`, {times}."
    for failure in section.failures:
        yield f"**Failed**: {_cell(failure)}"
    if section.growths:
        yield f"![{section.title}]({section.name}.svg)"
    if section.comparisons:
        yield "\n".join(_table(section.comparisons))
    missed = [c for c in section.comparisons if verdict(c) == "missed"]
    reasons = [
        f"- Missed: {c.first.what}, beside {c.first.peer or 'its goal'}. {c.first.reason or 'Not explained yet.'}"
        for c in missed
    ]
    reasons += [f"- Not measured: {skipped.what}, since {skipped.why}." for skipped in section.skipped]
    if reasons:
        yield "\n".join(reasons)


def _table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield "| what | torchsan | beside | its figure | judged | goal | | seen |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for c in comparisons:
        row, word = c.first, verdict(c)
        theirs = "" if c.theirs is None else _amount(c.theirs, row.unit)
        ours, theirs, goal = (_unbroken(text) for text in (_amount(c.ours, row.unit), theirs, judged(c)))
        cells = [row.what, ours, row.peer, theirs, described(c), goal, f"**{word}**" if word == "missed" else word]
        yield "| " + " | ".join(_cell(cell) for cell in (*cells, row.note)) + " |"


def _limits(sections: Sequence[Section]) -> Iterator[str]:
    limits = dict.fromkeys(limit for section in sections for limit in section.limits)
    lines = [f"| {_cell(limit.who)} | {_cell(limit.cannot)} |" for limit in limits]
    yield "\n".join(["| | cannot |", "| --- | --- |", *lines])


def _cell(text: str) -> str:
    return re.sub(r"[ \n]+", " ", text).replace("|", "\\|")


def _unbroken(text: str) -> str:
    """A figure and its unit stay on one line: columns are narrow."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _amount(value: float, unit: str) -> str:
    return f"{figure(value, unit)}{'' if unit == '×' else ' '}{unit}".rstrip()
