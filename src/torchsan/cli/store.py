"""`torchsan store`: looks after a tensor store."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torchsan.errors import StoreError, UsageError
from torchsan.recording.folder import as_local
from torchsan.records.tensor import in_bytes
from torchsan.report.findings import clean

if TYPE_CHECKING:
    import torch

    from torchsan.store import Store
    from torchsan.store.metadata import TensorRecord

_FORMATS = (".safetensors", ".npy", ".pt")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = subparsers.add_parser("store", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, action: object, text: str) -> Callable[..., argparse.Action]:
        sub = actions.add_parser(name, help=text, description=text)
        sub.add_argument("path", metavar="PATH", help="folder or fsspec URL of the store")
        sub.set_defaults(action=action)
        return sub.add_argument

    flag = add("ls", _ls, "list the tensors")
    flag("prefix", metavar="PREFIX", nargs="?", default="", help="only names that begin with this")
    flag = add("show", _show, "show what is stored about one tensor, and its values")
    flag("name", metavar="NAME")
    flag = add("get", _get, "write tensors to a file")
    flag("names", metavar="NAME", nargs="+", help="several go into one .safetensors or .pt")
    flag("--to", metavar="FILE", required=True, type=Path, help="a .safetensors, .npy or .pt file")
    add("fsck", _fsck, "check every record and every byte; exit status 1 if something is damaged")
    flag = add("gc", _gc, "remove what no tensor refers to")
    flag("--drop-damaged", action="store_true", help="give up records and names that are damaged")
    flag = add("sync", None, "send a recording or a store that is still here to --to")
    flag("--to", metavar="URL", help="where to; without it you are asked, if the folder says where it was to go")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if args.action is None:
        return _sync(Path(args.path), args.to)
    from torchsan.store import Store

    store = Store(args.path)
    if not store.exists():
        raise UsageError(f"there is no store at {args.path}; Store(path).put makes one", slug="no-store")
    action: Callable[[Store, argparse.Namespace], int] = args.action
    with store:
        return action(store, args)


def _say(text: str) -> None:
    """Print a line. Names in a store are whatever its maker wrote."""
    sys.stdout.write(clean(text, 10_000) + "\n")


def _sync(folder: Path, to: str | None) -> int:
    from torchsan.recording.shipping import read_destination, send

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", slug="no-store")
    url = to or read_destination(folder)
    if url is None:
        raise UsageError(f"nothing says where {folder} is to go; name it with --to URL", slug="no-destination")
    if to is None and not _agreed(f"{folder} says that it was to go to {url}. Send it there? [y/N] "):
        # Whoever made the folder wrote that, and sending overwrites what is there, with the rights of who sends.
        raise UsageError(f"{folder} says that it was to go to {url}; if so, add --to {url}", slug="no-destination")
    here = as_local(url)
    if here is not None and Path(os.path.realpath(here)).is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"{url} is in {folder} itself; name another place with --to URL", slug="no-destination")
    count = send(folder, url)
    _say(f"sent {count} files to {url}; all of it is there, and {folder} can go")
    return 0


def _agreed(question: str) -> bool:
    """Ask on the terminal; without one nobody has agreed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _ls(store: Store, args: argparse.Namespace) -> int:
    for name in store.names(args.prefix):
        try:
            record = store.record(name)
        except StoreError as e:
            sys.stdout.write(f"{clean(name)}\t(damaged: {e.slug})\n")
            continue
        nbytes = sum(blob.nbytes for blob in record.blobs)
        layout = "" if record.meta.layout == "strided" else f"\t{record.meta.layout}"
        sys.stdout.write(f"{clean(name)}\t{record.dtype}\t{list(record.shape)}\t{nbytes} bytes{layout}\n")
    return 0


def _show(store: Store, args: argparse.Namespace) -> int:
    record = store.record(args.name)
    meta = record.meta
    _say(f"name           {args.name}")
    for field in ("dtype", "shape", "stride", "offset", "device", "layout", "requires_grad", "conj", "neg"):
        value = getattr(meta, field)
        _say(f"{field:<14} {list(value) if isinstance(value, tuple) else value}")
    for blob in record.blobs:
        where = f"in pack {blob.pack} at {blob.at}" if blob.pack else "in a file of its own"
        _say(f"blob           {blob.digest}, {blob.nbytes} bytes, {where}")
    sys.stdout.write(f"{store.get(args.name, device='cpu').detach()}\n")
    return 0


def _get(store: Store, args: argparse.Namespace) -> int:
    target: Path = args.to
    if target.suffix not in _FORMATS:
        raise UsageError(f"cannot write {target}: its name must end in one of {', '.join(_FORMATS)}", slug="bad-format")
    if target.suffix != ".pt":  # Which keeps elements that share memory as they are.
        refuse_swollen([store.record(name) for name in args.names], "write them to a .pt file")
    tensors = {name: t.detach() for name, t in store.get_many(args.names, device="cpu").items()}
    write_tensors(tensors, target)
    sys.stderr.write(f"wrote {', '.join(tensors)} to {target}\n")
    return 0


def refuse_swollen(records: Iterable[TensorRecord], otherwise: str) -> None:
    """Raise UsageError if tensors are much larger than what is stored of them; `otherwise` says what to do."""
    from torchsan.store.metadata import swollen

    nbytes = swollen(records)
    if nbytes is not None:
        raise UsageError(
            f"these tensors are {in_bytes(nbytes)}, many times what is stored of them; {otherwise}", slug="too-large"
        )


def write_tensors(tensors: dict[str, torch.Tensor], target: Path) -> None:
    """Write tensors to a file in the format of its suffix. Raise UsageError if that cannot hold them, or be written."""
    if target.is_symlink():
        raise UsageError(f"cannot write {target}: it is a link", slug="bad-target")
    try:
        _write(tensors, target)
    except OSError as e:
        raise UsageError(f"cannot write {target}: {e.strerror or e}", slug="bad-target") from e


def _write(tensors: dict[str, torch.Tensor], target: Path) -> None:
    match target.suffix:
        case ".npy":
            _save_npy(tensors, target)
        case ".safetensors":
            _save_safetensors(tensors, target)
        case _:
            import torch

            torch.save(tensors if len(tensors) > 1 else next(iter(tensors.values())), target)


def _save_npy(tensors: dict[str, torch.Tensor], target: Path) -> None:
    import numpy

    if len(tensors) > 1:
        raise UsageError("a .npy file holds one tensor; write several to .safetensors or .pt", slug="bad-format")
    ((name, tensor),) = tensors.items()
    try:
        array = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, ValueError) as e:
        raise UsageError(
            f"numpy cannot hold tensor {name!r} ({tensor.dtype}, {tensor.layout}, {list(tensor.shape)!s:.80}); "
            "write it to .safetensors or .pt",
            slug="bad-format",
        ) from e
    numpy.save(target, array)


def _save_safetensors(tensors: dict[str, torch.Tensor], target: Path) -> None:
    import torch

    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as e:
        raise UsageError(
            "writing .safetensors needs the package safetensors: install torchsan[safetensors]", slug="missing-package"
        ) from e
    if sparse := [name for name, tensor in tensors.items() if tensor.layout is not torch.strided]:
        raise UsageError(f"safetensors cannot hold {sparse[0]!r}, which is sparse; write it to .pt", slug="bad-format")
    try:
        # Copies, because safetensors takes neither views nor storages that are shared.
        save_file(
            {
                n: t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                for n, t in tensors.items()
            },
            target,
        )
    except SafetensorError as e:  # Such as a full disk.
        raise UsageError(f"cannot write {target}: {e}", slug="bad-target") from e
    except (KeyError, ValueError, TypeError) as e:
        raise UsageError(f"safetensors cannot hold these tensors: {e}; write them to .pt", slug="bad-format") from e


def _fsck(store: Store, args: argparse.Namespace) -> int:
    with _progress("checking") as progress:
        report = store.fsck(progress)
    for problem in report.problems:
        _say(f"damaged: {problem.where}: {problem.what}")
    for note in report.notes:
        _say(f"note: {note}")
    verdict = "clean" if report else f"{len(report.problems)} problems"
    _say(f"{verdict}: {report.tensors} tensors, {report.blobs} blobs, {report.nbytes} bytes")
    return 0 if report else 1


def _gc(store: Store, args: argparse.Namespace) -> int:
    with _progress("collecting") as progress:
        report = store.gc(drop_damaged=args.drop_damaged, progress=progress)
    for name in report.dropped:
        _say(f"dropped: {name}")
    _say(f"removed {report.blobs} blobs; freed {report.nbytes} bytes")
    return 0


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
