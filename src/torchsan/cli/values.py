"""`torchsan values RECORDING`: what was watched, as a table, and its tensors as files."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchsan.cli.report import opened
from torchsan.errors import UsageError
from torchsan.options import When
from torchsan.recording import Reader
from torchsan.records import Direction, Watched
from torchsan.records.tensor import value_key
from torchsan.report.values import Selection, print_values, select, watched_values

if TYPE_CHECKING:
    import torch


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `values` to the command line."""
    parser = commands.add_parser(
        "values", help="show what was watched", description="Show the values that a run with --watch recorded."
    )
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
        return _run(recording, args)


def _run(recording: Reader, args: argparse.Namespace) -> int:
    graph, direction = _graph(args.graph)
    selection = Selection(
        kernels=tuple(glob for glob in args.kernels.split(",") if glob),
        graph=graph,
        direction=direction,
        call=args.call,
        name=args.name,
        when=When(args.when),
        non_finite=args.non_finite,
    )
    values = select(watched_values(recording), selection)
    if args.save is not None:
        _save(recording, values, args.save)
    else:
        print_values(values, sys.stdout)
    return 0


def _graph(text: str | None) -> tuple[int | None, str | None]:
    if text is None:
        return None, None
    match = re.fullmatch(rf"(\d+)(?:[: ]({'|'.join(Direction)}))?", text)
    if match is None:
        raise UsageError(f"--graph {text!r}: expected a number, or one with a direction as 0:backward", slug="usage")
    return int(match[1]), match[2]


def _save(recording: Reader, values: Sequence[Watched], folder: Path) -> None:
    """Write each saved tensor to a file of its own."""
    saved = [w for w in values if w.stored is not None]
    if not saved:
        raise UsageError(
            f"no tensors of these values in {recording.path}; record it with --watch save", slug="tensor-not-recorded"
        )
    from torchsan.store import Store

    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    with Store(recording.store) as store:
        for w in saved:
            tensor = store.get(str(w.stored), device="cpu").detach()
            _export(tensor, folder / _file_name(value_key(w), taken))
    left = sum(1 for w in values if w.summary is not None and w.stored is None)
    rest = f"; {left} others were not saved by the run" if left else ""
    sys.stderr.write(f"wrote {len(saved)} tensors to {folder}{rest}\n")


def _file_name(name: str, taken: set[str]) -> str:
    """A name that every file system takes and no other tensor has, without its suffix."""
    safe = re.sub(r"[^A-Za-z0-9_-]+", ".", name.replace("/", "__")).strip(".")[:200]
    unique, n = safe, 1
    while unique.lower() in taken:
        n += 1
        unique = f"{safe}-{n}"
    taken.add(unique.lower())
    return unique


def _export(tensor: torch.Tensor, target: Path) -> None:
    """Write to .npy where NumPy knows the dtype, else to .safetensors, else to .pt."""
    from torchsan.cli.store import write_tensors

    for suffix in (".npy", ".safetensors", ".pt"):
        try:
            write_tensors({"tensor": tensor}, target.with_name(target.name + suffix))
            return
        except UsageError:
            if suffix == ".pt":
                raise
