"""Writes lines for people: no wider than their terminal, and with nothing that steers it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TextIO

from torchsan.report.findings import Line


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines, in colour on a terminal and no wider than it. Rich interprets nothing of their text."""
    if not stream.isatty():
        encoding = stream.encoding or "utf-8"
        text = "".join(f"{line.text}\n" for line in lines)
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(Text(wrapped(line.text, console.width), style=line.style), soft_wrap=True)


def write_wrapped(text: str, stream: TextIO) -> None:
    """Write a text no wider than the terminal, if the stream is one; and as it is if not."""
    print_lines(map(Line, text.splitlines()), stream)


_NARROWEST = 40
"""Columns below which lines are left to the terminal: there is no room for what indents them."""


def wrapped(text: str, width: int) -> str:
    """Return a line broken at spaces into lines of at most `width`, the others below where its text begins.

    Columns, and commands that stand beside each other, are kept whole where they fit. So is a word that does not: names
    and paths can be copied.

    >>> print(wrapped("next: torchsan explain race   as a page: torchsan open torchsan-runs/1", 50))
    next: torchsan explain race
        as a page: torchsan open torchsan-runs/1
    """
    if len(text) <= width or width < _NARROWEST:
        return text
    label = re.match(r" *\S+: {2,}", text)
    hang = " " * (len(label[0]) if label is not None else len(text) - len(text.lstrip()) + 4)
    lines, line = [], ""
    for piece in re.split(r"(?<=\S)(?= {2,}\S)", text):
        if len(line) + len(piece) <= width:
            line += piece
            continue
        if len(line) > len(hang):
            lines.append(line)
            line, piece = hang, piece.strip()
        *full, line = textwrap.wrap(
            line + piece, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
        )
        lines += full
    return "\n".join([*lines, line])
