"""What `--watch` recorded, to look at: selected, and as a table."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from torchsan.errors import UsageError
from torchsan.options import Options, When
from torchsan.recording import Reader
from torchsan.records import Watched, decode
from torchsan.records.tensor import describe_value
from torchsan.report.findings import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which values to show; what is None or empty selects all."""

    kernels: tuple[str, ...] = ()
    """Globs of kernel names; one with `!` in front excludes."""
    graph: int | None = None
    direction: str | None = None
    call: int | None = None
    name: str | None = None
    """A glob of variables, probes and nodes."""
    when: When = When.BOTH
    non_finite: bool = False

    def selects(self, w: Watched) -> bool:
        """Return whether to show `w`."""
        return (
            (Options(kernels=self.kernels).selects(w.kernel))
            and self.graph in (None, w.graph)
            and self.direction in (None, w.direction)
            and self.call in (None, w.call)
            and (self.name is None or any(fnmatch.fnmatchcase(n, self.name) for n in (w.name, w.node) if n))
            and self.when in (When.BOTH, w.phase)
            and (not self.non_finite or _non_finite(w))
        )


def _non_finite(watched: Watched) -> bool:
    s = watched.summary
    return s is not None and bool(s.nan or s.posinf or s.neginf)


def watched_values(recording: Reader) -> list[Watched]:
    """Return what was watched, in the order it happened. Raise UsageError if nothing was."""
    values = [decode(Watched, body.get("watched")) for body in recording.events("watched")]
    if not values:
        raise UsageError(
            f"nothing was watched in {recording.path}; record it with --watch print or --watch save",
            slug="nothing-watched",
        )
    return values


def select(values: Sequence[Watched], selection: Selection) -> list[Watched]:
    """Return the values that `selection` selects. Raise UsageError, with what there is, if that is none."""
    selected = [w for w in values if selection.selects(w)]
    if not selected:
        kernels = list(dict.fromkeys(w.kernel for w in values))
        more = f" and {len(kernels) - 8} more" if len(kernels) > 8 else ""
        raise UsageError(
            f"none of the {len(values)} watched values is selected; kernels: {', '.join(kernels[:8])}{more}",
            slug="nothing-selected",
        )
    return selected


def print_values(values: Iterable[Watched], stream: TextIO) -> None:
    """Print a table: in the width of the terminal, or, where there is none, one line a value."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("graph", "call", "launch", "when", "kernel", "name", "node"):
        table.add_column(heading, no_wrap=not stream.isatty(), overflow="fold")
    table.add_column("value", no_wrap=not stream.isatty(), overflow="fold", ratio=1)
    longest = 0
    for w in values:
        style = "red" if _non_finite(w) else ("dim" if w.launch is None else "")
        cells = [clean(text) for text in _row(w)]
        longest = max(longest, sum(map(len, cells)) + 2 * len(cells))
        table.add_row(*(Text(text) for text in cells), style=style)
    width = None if stream.isatty() else longest + 1000
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    if stream.isatty():
        console.print(table)
        return
    for line in console.render_lines(table, pad=False):
        # Without what rich pads at its end.
        stream.write("".join(segment.text for segment in line).rstrip() + "\n")


def _row(w: Watched) -> tuple[str, ...]:
    graph = "probe" if w.graph is None else f"{w.graph} {w.direction}"
    launch = "" if w.launch is None else f"#{w.launch}"
    return graph, str(w.call), launch, w.phase, w.kernel, w.name, w.node or "", describe_value(w)
