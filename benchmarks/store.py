"""The tensor store.

One tensor of 1 GB (200 MB with `--quick`), files in the page cache; beside numpy, plain BLAKE3, `torch.load`, and
PyTorch's own content store, which is slow and gets 32 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from blake3 import blake3
from torch.utils._content_store import ContentStoreWriter, hash_storage  # what PyTorch offers, to compare with

from benchmarks.row import Kind, Limit, Record, Row
from benchmarks.timing import in_turns
from torchsan.store import Store

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3

_ROUNDS = 5
_SMALL = 10_000
_FLIPS = 1000
_WRITER = "`ContentStoreWriter`"
_VERIFIED = "Every byte is hashed with BLAKE3 before it is given out; `numpy.load` only copies."
_NEW_DATA = "New data are hashed with BLAKE3 while they are written, on the same cores; `numpy.save` only writes."


def measure(quick: bool) -> Iterator[Record]:
    """Measure writing, reading, many small tensors, memory, and what a view takes on disk."""
    nbytes = 200_000_000 if quick else 1_000_000_000
    folder = Path(tempfile.mkdtemp(prefix="torchsan-bench-"))
    rounds = 4 if quick else _ROUNDS
    try:
        tensor = torch.empty(nbytes // 64 * 16).uniform_()
        yield from _writes(folder, tensor, rounds)
        yield from _reads(folder, tensor, rounds)
        yield _small(folder, 1 if quick else 3)
        yield from (_memory(folder, nbytes, wait=wait) for wait in (True, False))
        yield _view(folder)
        yield from _limits()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _faster(what: str, ours: float, peer: str, theirs: float, goal: float) -> Row:
    return Row(what=what, kind=Kind.SPEED, unit="GB/s", ours=ours, peer=peer, theirs=theirs, goal=goal)


def _writes(folder: Path, tensor: torch.Tensor, rounds: int) -> Iterator[Row]:
    """New and known data, against numpy.save, BLAKE3 and ContentStoreWriter."""
    array, where = tensor.numpy(), folder / "writes"
    store = Store(where)

    def forget() -> None:
        # In a turn of its own, so that nobody is charged for it.
        tensor[:: tensor.nbytes // 64] += 1
        shutil.rmtree(where, ignore_errors=True)
        (folder / "x.npy").unlink(missing_ok=True)
        nonlocal store
        store = Store(where)
        store.put("warm", torch.ones(1))

    forget()
    works = {
        "forget": forget,
        "numpy": lambda: numpy.save(folder / "x.npy", array),
        "new": lambda: store.put("x", tensor),
        "known": lambda: store.put("y", tensor),
        "blake3": lambda: blake3(array.view(numpy.uint8).data, max_threads=blake3.AUTO).digest(),
    }
    speed = {name: tensor.nbytes / seconds / 1e9 for name, seconds in in_turns(works, rounds).items()}
    shutil.rmtree(where)
    few = tensor[: 8 << 20].clone()
    writer = ContentStoreWriter(str(folder / "torch"))
    slow = few.nbytes / in_turns({"put": lambda: writer.write_tensor("x", few)}, 2)["put"] / 1e9
    yield replace(_faster("put of new data", speed["new"], "`numpy.save`", speed["numpy"], 0.95), reason=_NEW_DATA)
    yield _faster("put of known data", speed["known"], "plain BLAKE3", speed["blake3"], 0.8)
    yield _faster("put of new data", speed["new"], _WRITER, slow, 30)
    yield _faster("put of known data", speed["known"], _WRITER, slow, 30)


def _reads(folder: Path, tensor: torch.Tensor, rounds: int) -> Iterator[Row]:
    """A large read, against torch.load and numpy.load."""
    path, npy, pt = folder / "reads", folder / "r.npy", folder / "r.pt"
    Store(path).put("x", tensor)
    numpy.save(npy, tensor.numpy())
    torch.save(tensor, pt)
    works = {
        "torch.load": lambda: torch.load(pt, weights_only=True),
        "unverified": lambda: Store(path).get("x", verify=False),
        "numpy touched": lambda: torch.from_numpy(numpy.load(npy)).sum(),
        "touched": lambda: Store(path).get("x", verify=False).sum(),
        "verified": lambda: Store(path).get("x").sum(),
        "numpy": lambda: numpy.load(npy),
        "get": lambda: Store(path).get("x"),
    }
    least = in_turns(works, rounds)
    speed = {name: tensor.nbytes / seconds / 1e9 for name, seconds in least.items()}
    yield Row(
        what="unverified read",
        kind=Kind.SPEED,
        unit="ms",
        ours=least["unverified"] * 1e3,
        peer="`torch.load`",
        theirs=least["torch.load"] * 1e3,
        goal=10,
    )
    default = _faster("read as by default, verified and not touched", speed["get"], "`numpy.load`", speed["numpy"], 1)
    yield replace(default, reason=_VERIFIED)
    yield _faster("read, every byte touched", speed["touched"], "`numpy.load`", speed["numpy touched"], 0.8)
    verified = _faster("the same, verified", speed["verified"], "`numpy.load`", speed["numpy touched"], 0.8)
    yield replace(verified, reason=_VERIFIED)
    for file in (npy, pt):
        file.unlink()
    shutil.rmtree(path)


def _small(folder: Path, rounds: int) -> Row:
    """Many small tensors through the background writer."""
    tensors = [torch.full((16,), float(n)) for n in range(_SMALL)]

    def put_all() -> None:
        with Store(tempfile.mkdtemp(dir=folder)) as store:
            for n, tensor in enumerate(tensors):
                store.put(f"layer/{n}", tensor, wait=False)
            store.flush()

    rate = _SMALL / in_turns({"put": put_all}, rounds)["put"]
    return Row(what=f"{_SMALL} small puts, background writer", kind=Kind.MORE, unit="/s", ours=rate, goal=5000)


def _memory(folder: Path, nbytes: int, *, wait: bool) -> Row:
    """The peak memory of a put beyond the tensor, in a process of its own."""
    code = (
        "import re, sys, torch; from pathlib import Path; from torchsan.store import Store\n"
        # Not `ru_maxrss`: a child begins with the peak of the process that started it.
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        f"t = torch.ones({nbytes // 4}); s = Store(sys.argv[1]); s.put('warm', torch.ones(200_000))\n"
        "before = peak()\n"
        f"s.put('x', t, wait={wait}); s.flush()\n"
        "print(peak() - before)"
    )
    where = folder / f"memory{wait}"
    words = [sys.executable, "-c", code, str(where)]
    extra = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) / 1024
    shutil.rmtree(where)
    what = f"peak memory of {'`put`' if wait else '`put(wait=False)`'} beyond the tensor"
    return Row(what=what, kind=Kind.LESS, unit="MB", ours=extra, goal=64)


def _view(folder: Path) -> Row:
    """What a view of two elements of 8 MB takes on disk."""
    view = torch.arange(2 << 20, dtype=torch.float32)[10:12]
    before = _taken(folder)
    Store(folder / "view").put("x", view)
    between = _taken(folder)
    ContentStoreWriter(str(folder / "torch view")).write_tensor("x", view)
    ours, theirs = (between - before) / 1e3, (_taken(folder) - between) / 1e3
    what = "on disk for a view of two elements of 8 MB"
    return Row(what=what, kind=Kind.LESS, unit="kB", ours=ours, peer=_WRITER, theirs=theirs)


def _taken(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _limits() -> Iterator[Limit]:
    x = torch.randn(_FLIPS, generator=torch.Generator().manual_seed(0))
    original, same = hash_storage(x.untyped_storage()), 0
    for i in range(_FLIPS):
        flipped = x.clone()
        flipped[i] *= -1
        same += hash_storage(flipped.untyped_storage()) == original
    if same:
        cannot = f"tell tensors apart: {same} of {_FLIPS} flips of one sign leave its address as it was"
        yield Limit(who=_WRITER, cannot=cannot)
    yield Limit(who=_WRITER, cannot="store a view without its whole base, notice a corrupt file, or write atomically")
    yield Limit(who="torchsan's store", cannot="keep quantized, nested, meta, fake or wrapped tensors")
