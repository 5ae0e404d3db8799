"""Growth as a picture: an SVG with a small panel for each pair, logarithmic both ways; in proportion is dashed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.row import Growth

__all__ = ["curves"]

_WIDE, _HIGH, _GAP, _LEFT, _TOP = 210, 120, 70, 90, 40
_INK, _GREY, _PAPER, _LINE = "#1f2328", "#57606a", "#ffffff", "#0969da"


def curves(growths: Sequence[Growth]) -> str:
    """Return the picture: a column for each thing that there is more of, a row for each that grows."""
    columns = list(dict.fromkeys(growth.by for growth in growths))
    rows = list(dict.fromkeys(growth.of for growth in growths))
    width = _LEFT + len(columns) * (_WIDE + _GAP)
    height = _TOP + len(rows) * (_HIGH + _GAP)
    parts = [
        part
        for growth in growths
        for part in _panel(
            growth,
            _LEFT + columns.index(growth.by) * (_WIDE + _GAP),
            _TOP + rows.index(growth.of) * (_HIGH + _GAP),
        )
    ]
    # A background of its own: pages are dark for some readers, and the text is not.
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
            f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(growth: Growth, left: float, top: float) -> Iterator[str]:
    xs = [math.log10(x) for x, _ in growth.points]
    ys = [math.log10(y) for _, y in growth.points]
    middle, half = (max(ys) + min(ys)) / 2, max(1.0, (max(ys) - min(ys)) / 2 + 0.2)

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - xs[0]) / (xs[-1] - xs[0])
        return left + share * _WIDE, top + _HIGH * (0.5 - (y - middle) / (2 * half))

    yield f'<rect x="{left}" y="{top}" width="{_WIDE}" height="{_HIGH}" fill="none" stroke="#d0d7de"/>'
    yield _text(left, top - 8, f"{growth.of} ({growth.unit}) by {growth.by}", "start", _INK)
    yield from (_text(at(x, 0)[0], top + _HIGH + 16, _number(10**x), "middle", _GREY) for x in (xs[0], xs[-1]))
    for y in (ys[0], ys[-1]):
        yield _text(left - 6, at(xs[0], y)[1] + 4, _number(10**y), "end", _GREY)
    # In proportion to the last point, as far as the panel goes down.
    low = max(xs[0], xs[-1] - (ys[-1] - (middle - half)))
    yield _path([at(low, ys[-1] - (xs[-1] - low)), at(xs[-1], ys[-1])], _GREY, 'stroke-dasharray="4 4"')
    points = [at(x, y) for x, y in zip(xs, ys, strict=True)]
    yield _path(points, _LINE, 'stroke-width="2"')
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_LINE}"/>' for x, y in points)
    yield _text(left + 8, top + 16, f"exponent {growth.exponent:.2f}", "start", _GREY)


def _number(value: float) -> str:
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def _path(points: Sequence[tuple[float, float]], colour: str, style: str) -> str:
    steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{steps}" fill="none" stroke="{colour}" {style}/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
