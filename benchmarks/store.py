"""The tensor store against numpy, plain BLAKE3, `torch.load` and PyTorch's own content store, in one run.

`python -m benchmarks.store [GIGABYTES] [FOLDER]`. Each figure is the best of a few rounds in which the candidates take
turns, so that a busy machine slows all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from blake3 import blake3
from torch.utils._content_store import ContentStoreWriter  # what PyTorch offers, to compare with

from torchsan.store import Store

ROUNDS = 5
SMALL = 10_000


def best(candidates: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the least seconds that each candidate took, having them take turns."""
    seconds = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


class Benchmark:
    """Everything the issue asks for, in a folder of its own."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        self.nbytes = nbytes
        self.tensor = torch.empty(nbytes // 4).uniform_()
        self.count = 0

    def row(self, what: str, figure: str, goal: str, holds: bool) -> None:
        """Print one line of the table."""
        print(f"{what:<58} {figure:>24}   {goal:<34} {'yes' if holds else 'NO'}")

    def compare(self, what: str, ours: float, theirs: float, unit: str, goal: float) -> None:
        """Print a ratio and whether it reaches `goal`."""
        ratio = ours / theirs
        self.row(what, f"{ours:.2f} / {theirs:.3g} {unit}", f"{ratio:.3g} × ≥ {goal:g} ×", ratio >= goal)

    def speed(self, seconds: float, nbytes: int | None = None) -> float:
        """Return gigabytes a second."""
        return (nbytes or self.nbytes) / seconds / 1e9

    def writes(self) -> None:
        """New and known data, against numpy.save, BLAKE3 and ContentStoreWriter."""
        array, store = self.tensor.numpy(), Store(self.folder / "writes")

        def put_new() -> None:
            store.put("x", self.tensor)

        def forget() -> None:
            # In a turn of its own, so that nobody is charged for it.
            self.count += 1
            self.tensor[:: self.nbytes // 64] += 1
            shutil.rmtree(self.folder / "writes", ignore_errors=True)
            (self.folder / "x.npy").unlink(missing_ok=True)
            nonlocal store
            store = Store(self.folder / "writes")
            store.put("warm", torch.ones(1))

        forget()
        found = best(
            {
                "forget": forget,
                "numpy": lambda: numpy.save(self.folder / "x.npy", array),
                "new": put_new,
                "known": lambda: store.put("y", self.tensor),
                "blake3": lambda: blake3(array.view(numpy.uint8).data, max_threads=blake3.AUTO).digest(),
            }
        )
        shutil.rmtree(self.folder / "writes")
        few = self.tensor[: min(len(self.tensor), 8 << 20)].clone()
        torch_writer = ContentStoreWriter(str(self.folder / "torch"))
        theirs = best({"put": lambda: torch_writer.write_tensor("x", few)}, rounds=2)["put"]
        slow = self.speed(theirs, few.nbytes)
        new, known = self.speed(found["new"]), self.speed(found["known"])
        numpy_save, plain = self.speed(found["numpy"]), self.speed(found["blake3"])
        self.compare("put of new data / numpy.save", new, numpy_save, "GB/s", 0.7)
        self.compare("put of known data / plain BLAKE3", known, plain, "GB/s", 0.8)
        self.compare("put of new data / torch's ContentStoreWriter", new, slow, "GB/s", 30)
        self.compare("put of known data / torch's ContentStoreWriter", known, slow, "GB/s", 30)

    def reads(self) -> None:
        """A large read, against torch.load and numpy.load."""
        path, npy, pt = self.folder / "reads", self.folder / "r.npy", self.folder / "r.pt"
        Store(path).put("x", self.tensor)
        numpy.save(npy, self.tensor.numpy())
        torch.save(self.tensor, pt)
        found = best(
            {
                "torch.load": lambda: torch.load(pt, weights_only=True),
                "unverified": lambda: Store(path).get("x", verify=False),
                "numpy touched": lambda: torch.from_numpy(numpy.load(npy)).sum(),
                "touched": lambda: Store(path).get("x", verify=False).sum(),
                "verified": lambda: Store(path).get("x").sum(),
            }
        )
        # As loads a second, so that more is better here too: a tenth of the time is ten times the loads.
        self.compare("unverified read / torch.load", 1 / found["unverified"], 1 / found["torch.load"], "/s", 10)
        numpy_speed = self.speed(found["numpy touched"])
        self.compare("read, every byte touched / numpy.load", self.speed(found["touched"]), numpy_speed, "GB/s", 0.8)
        self.compare("the same, verified / numpy.load", self.speed(found["verified"]), numpy_speed, "GB/s", 0.8)
        for file in (npy, pt):
            file.unlink()
        shutil.rmtree(path)

    def small(self) -> None:
        """Many small tensors through the background writer."""
        tensors = [torch.full((16,), float(n)) for n in range(SMALL)]

        def put_all() -> None:
            with Store(self.folder / f"small{self.count}") as store:
                for n, tensor in enumerate(tensors):
                    store.put(f"layer/{n}", tensor, wait=False)
                store.flush()
            self.count += 1

        rate = SMALL / best({"put": put_all}, rounds=3)["put"]
        self.row(f"{SMALL} small puts, background writer", f"{rate:.0f} /s", f"{rate:.0f} ≥ 5000", rate >= 5000)

    def memory(self) -> None:
        """The peak memory of a put beyond the tensor, in a process of its own."""
        for what in ("True", "False"):
            code = (
                "import resource, sys, torch; from torchsan.store import Store\n"
                f"t = torch.ones({self.nbytes // 4}); s = Store(sys.argv[1]); s.put('warm', torch.ones(200_000))\n"
                "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
                f"s.put('x', t, wait={what}); s.flush()\n"
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
            )
            where = self.folder / f"memory{what}"
            words = [sys.executable, "-c", code, str(where)]
            extra = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) / 1024
            name = "put" if what == "True" else "put(wait=False)"
            self.row(f"peak memory of a {name} beyond the tensor", f"{extra:.1f} MB", "≤ 64 MB", extra <= 64)
            shutil.rmtree(where)


def run(gigabytes: float, folder: str | None) -> None:
    """Print the table."""
    where = Path(tempfile.mkdtemp(prefix="torchsan-bench-", dir=folder))
    try:
        bench = Benchmark(where, int(gigabytes * 1e9) // 64 * 64)
        print(f"tensor store, {gigabytes:g} GB, {torch.get_num_threads()} threads, best of {ROUNDS}")
        bench.writes()
        bench.reads()
        bench.small()
        bench.memory()
    finally:
        shutil.rmtree(where, ignore_errors=True)


def main(gigabytes: str = "1", folder: str | None = None) -> None:
    """Run with the words of the command line."""
    run(float(gigabytes), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
