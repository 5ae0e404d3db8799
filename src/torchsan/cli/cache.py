"""`torchsan cache PATH`: what a folder of compile caches holds, against what a fresh compile gives here.

Entries are pickles, which run code when they are loaded: only the texts in them are read. Those hold the graph as well
as the code, so that the code can be generated anew; it is compared, and neither is run.
"""

from __future__ import annotations

import argparse
import os
import pickletools
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchsan.errors import RecordingError, UsageError, in_one_line
from torchsan.files import open_plain
from torchsan.graphs.data import Unrepresentable
from torchsan.graphs.runnable import MARK, read_runnable
from torchsan.records import Direction
from torchsan.report.findings import clean
from torchsan.torch_internals.caches import same_code, vector_elements, vector_widths

_KINDS = ("fxgraph", "aotautograd")
_LARGEST = 256 << 20
_MOST_VISIBLE = 8
_AOT_ID = re.compile(r"# AOT ID: \['\d+_(\w+)'\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One artifact. `texts` are those in it, None if they could not be read."""

    kind: str
    key: str
    age: float
    size: int
    texts: tuple[str, ...] | None

    @property
    def programs(self) -> list[tuple[str, str]]:
        """The generated programs, each with the script that describes its graph, which follows it."""
        texts = self.texts or ()
        codes = [text for text in texts if "AsyncCompile()" in text]
        scripts = [text for text in texts if MARK in text]
        return list(zip(codes, scripts, strict=True)) if len(codes) == len(scripts) else []


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cache` to the command line."""
    parser = commands.add_parser(
        "cache",
        description="List what the FX graph cache and the AOTAutograd cache in a folder hold. The code of each graph "
        "is generated anew and compared; none of it is loaded or run. Exit status: 0 if what could be compared is what "
        "this PyTorch generates here, 1 if not, 4 if nothing could be read or compared.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the folder, as in TORCHINDUCTOR_CACHE_DIR")
    parser.add_argument("--no-compile", action="store_true", help="compare nothing, which takes about 1 s a graph")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each entry and return the status."""
    if not any((args.path / kind).is_dir() and not (args.path / kind).is_symlink() for kind in _KINDS):
        raise UsageError(
            f"no compile caches in {args.path}: it has neither {' nor '.join(_KINDS)}; the evidence of a finding "
            "names the folder",
            slug="usage",
        )
    entries = stale = unread = same = 0
    for entry in read_cache(args.path):
        entries += 1
        unread += entry.texts is None
        verdicts = list(_verdicts(entry, compiled=not args.no_compile))
        stale += any(bad for _, bad in verdicts)
        same += any(bad is False for _, bad in verdicts)
        words = (f"{entry.kind:12}", entry.key[:16], f"{entry.age / 3600:8.1f} h", f"{entry.size:>9} B")
        line = "  ".join((*words, "; ".join(verdict for verdict, _ in verdicts)))
        sys.stdout.write(f"{clean(line)}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{entries} entries, {same} as a fresh compile gives them, {stale} stale, {unread} not read\n")
    if stale:
        sys.stdout.write(f"clear them: rm -r {clean(shlex.quote(str(args.path)))}\n")
    return 1 if stale else 4 if unread == entries or not (same or args.no_compile) else 0


def _verdicts(entry: Entry, *, compiled: bool) -> Iterator[tuple[str, bool | None]]:
    """What is to be said of an entry; with each whether it is stale, None if that says nothing about it."""
    if entry.texts is None:
        yield "cannot be read", None
        return
    yield f"{sum(text.count('async_compile.cpp') for text in entry.texts)} kernels", None
    widths = vector_widths("\n".join(entry.texts))
    wide = [f"{n} × {dtype}" for dtype, n in widths.items() if 0 < (vector_elements(dtype) or 0) < n]
    if wide:
        yield f"for vectors of {', '.join(wide)}, which are wider than here: its results are wrong", True
        return
    for code, script in entry.programs if compiled else ():
        try:
            same = any(same_code(code, fresh, named=False) for fresh in fresh_codes(code, script))
        except (Unrepresentable, RecordingError, ValueError) as e:
            yield f"not compared: {e}", None
        except Exception as e:  # noqa: BLE001  # a graph that this PyTorch cannot compile ends no listing
            yield f"not compared: Inductor fails here: {in_one_line(e)}", None
        else:
            yield "the same code as a fresh compile" if same else "other code than a fresh compile gives", not same


def fresh_codes(code: str, script: str) -> Iterator[str]:
    """Generate the code anew that a cache holds with the script that describes its graph: what it may be.

    Which outputs the program sees, so that their strides are kept, no text says: that makes several.
    Raise Unrepresentable, RecordingError or ValueError if there are none.
    """
    from torchsan.graphs.rebuild import dtype_named, rebuild_graph
    from torchsan.torch_internals.recompile import differing_settings, generated_code

    found = _AOT_ID.search(code)
    if found is None or found[1] not in set(Direction):
        raise Unrepresentable("its direction is not known")
    runnable = read_runnable(script)
    settings = differing_settings(runnable.settings)
    inputs = [(given.size, given.stride, dtype_named(given.dtype)) for given in runnable.inputs]
    outputs = len(runnable.graph.outputs)
    for visible in dict.fromkeys([outputs, *range(min(outputs, _MOST_VISIBLE))]):
        module = rebuild_graph(runnable.graph, {})
        yield generated_code(module, inputs, Direction(found[1]), settings, visible)


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
            texts=None if texts is None else tuple(texts),
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
