"""Makes the sections of a report fit a screen: each gives up lines only when all of them together are too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchsan.report.findings import Line

__all__ = ["Section", "fitted"]

Render = Callable[[int | None], list[Line]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report. `render(n)` gives it in at most `n` lines, `render(None)` whole.

    `share` is how many lines it may take whatever the others need; at least what it takes to say what it leaves out.
    """

    render: Render
    share: int


def fitted(sections: Sequence[Section], limit: int | None) -> list[Line]:
    """Return the sections in at most `limit` lines; None for no limit. Lines that one does not need go to the first."""
    whole = [section.render(None) for section in sections]
    if limit is None or sum(map(len, whole)) <= limit:
        return [line for lines in whole for line in lines]
    given = [min(len(lines), section.share) for lines, section in zip(whole, sections, strict=True)]
    for i, lines in enumerate(whole):
        spare = max(0, limit - sum(given))
        given[i] += min(spare, len(lines) - given[i])
    return [
        line
        for section, lines, n in zip(sections, whole, given, strict=True)
        for line in (lines if len(lines) <= n else section.render(n))
    ]
