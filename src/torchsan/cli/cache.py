"""`torchsan cache PATH`: what a folder of compile caches holds, and whether its code is for this machine.

Entries are pickles, which run code when they are loaded: only the texts in them are read.
"""

from __future__ import annotations

import argparse
import os
import pickletools
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchsan.errors import UsageError
from torchsan.files import open_plain
from torchsan.report.findings import clean
from torchsan.torch_internals.caches import vector_elements, vector_widths

_KINDS = ("fxgraph", "aotautograd")
_LARGEST = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One artifact. `kernels` counts the C++ kernels in it, None if its texts could not be read."""

    kind: str
    key: str
    age: float
    size: int
    kernels: int | None
    widths: dict[str, int]
    """The widest vector of each dtype that its code loads, in elements."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cache` to the command line."""
    parser = commands.add_parser(
        "cache",
        help="look at a folder of compile caches",
        description="List what the FX graph cache and the AOTAutograd cache in a folder hold, without loading any of "
        "it, and say which code is for vectors that are wider than this machine's. Exit status: 0 if none is, 1 if "
        "one is, 4 if nothing could be read.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the folder, as in TORCHINDUCTOR_CACHE_DIR")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each entry and return the status."""
    if not any((args.path / kind).is_dir() and not (args.path / kind).is_symlink() for kind in _KINDS):
        raise UsageError(
            f"no compile caches in {args.path}: it has neither {' nor '.join(_KINDS)}; the evidence of a finding "
            "names the folder",
            slug="usage",
        )
    entries = list(read_cache(args.path))
    here = {dtype: vector_elements(dtype) for entry in entries for dtype in entry.widths}
    wrong = 0
    for entry in entries:
        wide = [f"{n} × {dtype}" for dtype, n in entry.widths.items() if 0 < (here[dtype] or 0) < n]
        wrong += bool(wide)
        verdict = "cannot be read" if entry.kernels is None else f"{entry.kernels} kernels"
        if wide:
            verdict += f"; for vectors of {', '.join(wide)}, which are wider than here: its results are wrong"
        words = (f"{entry.kind:12}", entry.key[:16], f"{entry.age / 3600:8.1f} h", f"{entry.size:>9} B", verdict)
        sys.stdout.write(f"{clean('  '.join(words))}\n")
    unread = sum(entry.kernels is None for entry in entries)
    sys.stdout.write(f"{len(entries)} entries, {wrong} for another machine, {unread} not read\n")
    if wrong:
        sys.stdout.write(f"clear them: rm -r {clean(shlex.quote(str(args.path)))}\n")
    return 1 if wrong else 4 if unread == len(entries) else 0


def read_cache(path: Path) -> Iterator[Entry]:
    """The entries of a folder of caches, oldest first. Links are not followed: they could lead anywhere."""
    files = []
    for kind in _KINDS:
        for folder, _, names in os.walk(path / kind) if not (path / kind).is_symlink() else ():
            files += [Path(folder, name) for name in names if not name.startswith(".")]
    known = [(file, file.lstat()) for file in files]
    for file, found in sorted(known, key=lambda each: each[1].st_mtime):
        texts = _texts(file) if found.st_size <= _LARGEST else None
        yield Entry(
            kind=file.relative_to(path).parts[0],
            key=file.parent.name,
            age=max(0.0, time.time() - found.st_mtime),
            size=found.st_size,
            kernels=None if texts is None else sum(text.count("async_compile.cpp") for text in texts),
            widths=vector_widths("\n".join(texts or ())),
        )


def _texts(file: Path) -> list[str] | None:
    """The texts in a pickle, which is not loaded; None if it is none."""
    found = []
    try:
        with os.fdopen(open_plain(file, follow=False), "rb") as stream:
            contents = stream.read()
        # Of bytes and not of a file, which would make room for as much as an entry claims to hold.
        for opcode, argument, _ in pickletools.genops(contents):
            if isinstance(argument, str) and "UNICODE" in opcode.name:
                found.append(argument)
            elif isinstance(argument, bytes) and b"async_compile" in argument:
                found.append(argument.decode("utf-8", "replace"))
    except (OSError, ValueError, EOFError, UnicodeDecodeError):
        return None
    return found
