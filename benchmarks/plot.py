"""The ratios as a picture: an SVG with one line a comparison, on logarithmic axes, with spread and goal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.page import Section, described, judged, verdict
from benchmarks.row import Comparison, Kind

__all__ = ["plot"]

_WIDTH, _LEFT, _RIGHT, _LINE = 980, 516, 750, 22
_INK, _GREY, _PAPER = "#1f2328", "#57606a", "#ffffff"
_COLOURS = {"met": "#1a7f37", "missed": "#cf222e", "open": "#9a6700", "": _GREY}
_PANELS = {
    Kind.SPEED: "Times as fast as … (further right is better; the goal is the least)",
    Kind.COST: "Cost as a multiple of … (further left is better; the goal is the most)",
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two ratios."""

    least: float
    greatest: float

    def at(self, value: float) -> float:
        """Where a ratio is, in pixels from the left."""
        share = math.log(value / self.least) / math.log(self.greatest / self.least)
        return _LEFT + share * (_RIGHT - _LEFT)

    def powers(self) -> list[float]:
        """The powers of ten in between."""
        first, last = math.ceil(math.log10(self.least)), math.floor(math.log10(self.greatest))
        return [10.0**power for power in range(first, last + 1)]


def plot(sections: Sequence[Section]) -> str:
    """Return the picture: a panel for speeds, one for costs."""
    comparisons = [c for section in sections for c in section.comparisons]
    parts: list[str] = []
    top = 30.0
    for kind, title in _PANELS.items():
        shown = [c for c in comparisons if c.first.kind is kind]
        if shown:
            parts += _panel(shown, title, top)
            top += (len(shown) + 3.5) * _LINE
    parts += _legend(top)
    height = top + 2 * _LINE
    # A background of its own: pages are dark for some readers, and the text is not.
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
            f'height="{height:.0f}" font-family="system-ui, sans-serif" font-size="14" fill="{_INK}">',
            f'<rect width="{_WIDTH}" height="{height:.0f}" rx="8" fill="{_PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(comparisons: Sequence[Comparison], title: str, top: float) -> Iterator[str]:
    axis = _axis(comparisons)
    bottom = top + (len(comparisons) + 0.5) * _LINE
    yield _text(20, top, title, bold=True)
    for power in axis.powers():
        x = axis.at(power)
        yield _line(x, top + _LINE / 2, x, bottom, _GREY if power == 1 else "#d0d7de")
        yield _text(x, bottom + 14, f"{power:g}×", anchor="middle", colour=_GREY)
    for n, comparison in enumerate(comparisons, 1):
        yield from _comparison(comparison, axis, top + n * _LINE)


def _axis(comparisons: Sequence[Comparison]) -> _Axis:
    values = [1.0, *(value for c in comparisons for value in (*c.spread, c.first.goal or 1.0))]
    return _Axis(min(values) * 0.8, max(values) * 1.25)


def _comparison(c: Comparison, axis: _Axis, y: float) -> Iterator[str]:
    word = verdict(c)
    colour, x = _COLOURS[word], axis.at(c.value)
    label = f"{c.first.what} / {c.first.peer}".replace("`", "")
    yield _text(_LEFT - 12, y + 4, _short(label), anchor="end", hint=label)
    left, right = (axis.at(value) for value in c.spread)
    yield _line(left, y, right, y, colour, width=2)
    yield from (_line(end, y - 3, end, y + 3, colour, width=2) for end in (left, right))
    if c.first.goal is not None:
        goal = axis.at(c.first.goal)
        yield _line(goal, y - 8, goal, y + 8, _INK, width=2)
    yield _mark(word, x, y, colour, ended=c.ended)
    goal_text = f", goal {judged(c)}: {word}" if word else ""
    # The spread is drawn; its figures stand in the table.
    yield _text(_RIGHT + 12, y + 4, described(c, spread=False) + goal_text, colour=colour)


def _mark(word: str, x: float, y: float, colour: str, *, ended: bool) -> str:
    """A disc where the goal is met, a cross where it is missed, a ring without one; an arrow if it may be more."""
    if ended:
        return f'<path d="M{x:.1f} {y - 5:.1f} l9 5 l-9 5 z" fill="{colour}"/>'
    if word == "missed":
        return f'<path d="M{x - 5:.1f} {y - 5:.1f} l10 10 m0 -10 l-10 10" stroke="{colour}" stroke-width="3"/>'
    fill = colour if word else _PAPER
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _legend(y: float) -> Iterator[str]:
    x = 20.0
    for word, text, ended in (
        ("met", "goal met", False),
        ("missed", "goal missed", False),
        ("", "no goal", False),
        ("open", "ended early: at least", True),
    ):
        yield _mark(word, x + 6, y, _COLOURS[word], ended=ended)
        yield _text(x + 18, y + 4, text)
        x += 40 + 7.8 * len(text)
    yield _line(x + 6, y - 8, x + 6, y + 8, _INK, width=2)
    yield _text(x + 18, y + 4, "goal")
    yield _line(x + 76, y, x + 106, y, _GREY, width=2)
    yield _text(x + 114, y + 4, "spread over repetitions")


def _short(text: str, most: int = 70) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = _INK,
    bold: bool = False,
    hint: str = "",
) -> str:
    title = f"<title>{escape(hint)}</title>" if hint else ""
    style = f'text-anchor="{anchor}" fill="{colour}"' + (' font-weight="bold"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{title}{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, *, width: float = 1) -> str:
    where = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {where} stroke="{colour}" stroke-width="{width:g}"/>'
