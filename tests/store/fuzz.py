"""Mutates the files of a store and reads it. Run as a program, in a process of its own: a crash must not be missed.

Every read must give the right tensor or a StoreError, without allocating more than 64 MB, whatever the files hold.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import xxhash

from tests.store.tensors import same
from torchsan.errors import StoreError
from torchsan.store import Store

LIMIT = 64 << 20

NASTY: list[Any] = [
    -1, 0, 1, 2, 3, 7, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 0.5, 1e308, None, True, False,
    "", "x", "..", "../../x", "float64", "complex64", "qint8", "float32", "int64", "strided", "sparse_coo",
    "sparse_csr", "cuda:0", "meta", "cpu:99", "0" * 64, "f" * 64, [], [0], [-1], [1, 1], [2**40], [2**62, 2**62],
    [1] * 70, {}, {"a": 1},
]  # fmt: skip


def build(path: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Make a store; return its tensors, and the value that `twice` had first."""
    torch.manual_seed(0)
    base = torch.randn(300)
    old = torch.zeros(4)
    tensors = {
        "small": torch.randn(5),
        "shared-a": base[:200],
        "shared-b": base[100:].view(torch.int32),
        "large": torch.randn(20_000),
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "expanded": torch.randn(1, 3).expand(4, 3),
        "empty": torch.empty(0, 3),
        "twice": torch.ones(4),
    }
    with Store(path) as store:
        store.put("twice", old)
        store.put_many(tensors)
    return tensors, old


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with some bytes changed, removed, added or moved."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2:
                del out[at:]
            case 3:
                del out[at : at + rng.randrange(1, 40)]
            case 4:
                out[at:at] = rng.randbytes(rng.randrange(1, 40))
            case _:
                out += out[at : at + rng.randrange(1, 400)]
    return bytes(out)


def mutate_record(log: bytes, rng: random.Random) -> tuple[bytes, str, dict[str, Any]]:
    """Return `log` with one field of its last put of some name changed, and a right checksum."""
    lines = log.splitlines()
    number = rng.randrange(1, len(lines))
    record = json.loads(lines[number][17:])
    for _ in range(rng.choice((1, 1, 2))):
        parents: list[tuple[Any, Any]] = []
        _walk(record["tensor"], parents) if isinstance(record["tensor"], dict) else None
        where, key = rng.choice(parents or [(record, "tensor")])
        if rng.randrange(8) == 0 and isinstance(where, dict):
            where.pop(key, None)
        else:
            where[key] = copy.deepcopy(rng.choice(NASTY))
        if "tensor" not in record:
            break
    text = json.dumps(record).encode()
    lines[number] = b"%016x %b" % (xxhash.xxh3_64_intdigest(text), text)
    return b"\n".join(lines) + b"\n", record["name"], record


def _walk(value: Any, found: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            _walk(item, found)


def in_bounds(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` stays inside its storage; touch every byte of it."""
    if tensor.layout is not torch.strided:
        tensor = tensor.detach()
        parts = [tensor._indices(), tensor._values()] if tensor.layout is torch.sparse_coo else [tensor.values()]
        return all(in_bounds(part) for part in parts)
    if not tensor.numel():
        return True
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    storage = tensor.untyped_storage()
    torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).sum()
    return (int(tensor.storage_offset()) + reach) * tensor.element_size() <= storage.nbytes()


class Fuzzer:
    """One store, mutated and mended again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors, self.old = build(path)
        self.files = {p: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
        self.log = next(p for p in self.files if p.suffix == ".log")
        self.read_right = self.refused = 0

    def raw(self, rng: random.Random) -> None:
        """Mutate a file; what is read must be right or refused."""
        file = rng.choice([self.log, self.log, *self.files])
        changed = mutate(self.files[file], rng)
        file.write_bytes(changed)
        store = Store(self.path)
        for name in rng.sample(sorted(self.tensors), 3):
            try:
                tensor = store.get(name)
            except StoreError:
                self.refused += 1
                continue
            right = same(tensor, self.tensors[name])
            if not right and name == "twice" and file is self.log:
                # A log that lost whole records, and nothing else, is one that was written less to.
                whole = set(self.files[self.log].splitlines(keepends=True))
                lost = all(line in whole for line in changed.splitlines(keepends=True) if line.endswith(b"\n"))
                right = lost and same(tensor, self.old)
            assert right, (file, name, changed)
            self.read_right += 1
        if rng.randrange(100) == 0:
            self._look_after()
        self._mend(file)

    def record(self, rng: random.Random) -> None:
        """Mutate a record and its checksum; what is read must be what the record says, inside its blob."""
        changed, name, record = mutate_record(self.files[self.log], rng)
        self.log.write_bytes(changed)
        try:
            tensor = Store(self.path).get(name)
        except StoreError:
            self.refused += 1
        else:
            said = record["tensor"]
            assert list(tensor.shape) == said["shape"], record
            assert str(tensor.dtype) == f"torch.{said['dtype']}" or said["layout"] != "strided", record
            assert in_bounds(tensor), record
            self.read_right += 1
        if rng.randrange(100) == 0:
            self._look_after()
        self._mend(self.log)

    def _look_after(self) -> None:
        store = Store(self.path)
        try:
            store.fsck()
            store.names()
        except StoreError:
            pass

    def _mend(self, file: Path) -> None:
        file.write_bytes(self.files[file])


def main() -> None:
    path, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logging.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fuzzer = Fuzzer(path)
    for rng in (random.Random(-1), random.Random(-2)):  # what is loaded lazily is loaded before memory is limited
        for _ in range(200):
            fuzzer.raw(rng)
            fuzzer.record(rng)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + LIMIT, size + LIMIT))
    fuzzer.read_right = fuzzer.refused = 0
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        (fuzzer.raw if number % 2 else fuzzer.record)(rng)
    print(count, fuzzer.read_right, fuzzer.refused)


if __name__ == "__main__":
    main()
