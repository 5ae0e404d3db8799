"""`torchsan values RECORDING`: what was watched, as a table, and its tensors as files."""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchsan.cli.report import opened
from torchsan.cli.store import refuse_swollen, write_tensors
from torchsan.errors import UsageError
from torchsan.options import Options, When
from torchsan.recording import Reader
from torchsan.records import Direction, Watched, decode
from torchsan.records.tensor import describe_value, value_key
from torchsan.report.findings import clean

if TYPE_CHECKING:
    import torch


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `values` to the command line."""
    parser = commands.add_parser("values", description="Show the values that a run with --watch recorded.")
    flag = parser.add_argument
    flag("recording", metavar="RECORDING", help="the folder that `torchsan run --watch …` wrote")
    flag("--kernels", metavar="GLOB[,GLOB…]", default="", help="only these kernels; !GLOB excludes")
    flag("--graph", metavar="N[:DIRECTION]", help="only this graph, such as 0 or 0:backward")
    flag("--call", metavar="N", type=int, help="only this call of a graph, from 0")
    flag("--name", metavar="GLOB", help="only variables, probes or nodes of this name")
    flag("--when", choices=[str(w) for w in When], default=str(When.BOTH), help="only before or after a launch")
    flag("--non-finite", action="store_true", help="only tensors with NaN or Inf")
    flag("--save", metavar="DIR", type=Path, help="write the selected tensors to files in DIR")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the selected values, or save them; return 0. Raise UsageError where there are none."""
    with opened(args.recording) as recording:
        values = watched_values(recording)
        selected = list(filter(_selector(args), values))
        if not selected:
            kernels = list(dict.fromkeys(w.kernel for w in values))
            more = f" and {len(kernels) - 8} more" if len(kernels) > 8 else ""
            raise UsageError(
                f"none of the {len(values)} watched values is selected; kernels: {', '.join(kernels[:8])}{more}",
                slug="nothing-selected",
            )
        if args.save is not None:
            _save(recording, selected, args.save)
        else:
            _print(selected, sys.stdout)
        return 0


def watched_values(recording: Reader) -> list[Watched]:
    """Return what was watched, in the order it happened. Raise UsageError if nothing was."""
    values = [decode(Watched, body.get("watched")) for body in recording.events("watched")]
    if not values:
        raise UsageError(
            f"nothing was watched in {recording.path}; record it with --watch print or --watch save",
            slug="nothing-watched",
        )
    return values


def _selector(args: argparse.Namespace) -> Callable[[Watched], bool]:
    """Return whether to show a value, by all the flags that were given."""
    options = Options(kernels=tuple(glob for glob in args.kernels.split(",") if glob))
    graph = re.fullmatch(rf"(\d+)(?:[: ]({'|'.join(Direction)}))?", args.graph or "")
    if args.graph is not None and graph is None:
        expected = "expected a number, or one with a direction as 0:backward"
        raise UsageError(f"--graph {args.graph!r}: {expected}", slug="usage")

    def selects(w: Watched) -> bool:
        return (
            options.selects(w.kernel)
            and (graph is None or (int(graph[1]) == w.graph and graph[2] in (None, w.direction)))
            and args.call in (None, w.call)
            and (args.name is None or any(fnmatch.fnmatchcase(n, args.name) for n in (w.name, w.node) if n))
            and args.when in (When.BOTH, w.phase)
            and (not args.non_finite or _non_finite(w))
        )

    return selects


def _non_finite(watched: Watched) -> bool:
    s = watched.summary
    return s is not None and bool(s.nan or s.posinf or s.neginf)


_HEADINGS = ("graph", "call", "launch", "when", "kernel", "name", "node", "value")
_LAID_OUT = 1000
"""As many rows get the width of a terminal; laying out more takes long."""


def _print(values: Sequence[Watched], stream: TextIO) -> None:
    """Print a table: in the width of the terminal, or, where there is none or very much to show, one line a value."""
    if stream.isatty() and len(values) <= _LAID_OUT:
        _lay_out(values, stream)
        return
    from rich.cells import cell_len

    rows = [_HEADINGS, *(_row(w) for w in values)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        stream.write("  ".join(cells).rstrip() + "\n")


def _lay_out(values: Iterable[Watched], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold", ratio=1 if heading == "value" else None)
    for w in values:
        style = "red" if _non_finite(w) else ("dim" if w.launch is None else "")
        table.add_row(*map(Text, _row(w)), style=style)
    Console(file=stream, highlight=False, markup=False, emoji=False).print(table)


def _row(w: Watched) -> tuple[str, ...]:
    graph = "probe" if w.graph is None else f"{w.graph} {w.direction}"
    launch = "" if w.launch is None else f"#{w.launch}"
    cells = (graph, str(w.call), launch, w.phase, w.kernel, w.name, w.node or "", describe_value(w))
    return tuple(map(clean, cells))


def _save(recording: Reader, values: Sequence[Watched], folder: Path) -> None:
    """Write each saved tensor to a file of its own."""
    saved = [w for w in values if w.stored is not None]
    if not saved:
        raise UsageError(
            f"no tensors of these values in {recording.path}; record it with --watch save", slug="tensor-not-recorded"
        )
    from torchsan.store import Store

    taken: dict[str, int] = {}
    with Store(recording.store) as store:
        refuse_swollen(
            (store.record(str(w.stored)) for w in saved), "select some with --name, --kernels, --call or --when"
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UsageError(f"cannot write to {folder}: {e.strerror or e}", slug="bad-target") from e
        for w in saved:
            tensor = store.get(str(w.stored), device="cpu").detach()
            _export(tensor, folder / _file_name(value_key(w), taken))
    left = sum(1 for w in values if w.summary is not None and w.stored is None)
    rest = f"; {left} others were not saved by the run" if left else ""
    sys.stderr.write(f"wrote {len(saved)} tensors to {folder}{rest}\n")


def _file_name(name: str, taken: dict[str, int]) -> str:
    """A name that every file system takes and no other tensor has, without its suffix.

    `taken` says how many got a name after this one, so that finding a free number takes no longer with each.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]+", ".", name.replace("/", "__")).strip(".")[:200]
    unique, n = safe, taken.get(safe.lower(), 0)
    while unique.lower() in taken:
        n += 1
        unique = f"{safe}-{n + 1}"
    taken[safe.lower()] = n
    taken.setdefault(unique.lower(), 0)
    return unique


def _export(tensor: torch.Tensor, target: Path) -> None:
    """Write to .npy where NumPy knows the dtype, else to .safetensors, else to .pt."""
    for suffix in (".npy", ".safetensors", ".pt"):
        try:
            write_tensors({"tensor": tensor}, target.with_name(target.name + suffix))
            return
        except UsageError as e:
            if suffix == ".pt" or e.slug == "bad-target":
                raise
