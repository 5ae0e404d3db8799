"""Whatever the files of a store hold, reading it gives the right tensor or a StoreError."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

import torchsan
from tests.store.conftest import Place
from torchsan.errors import StoreError


def fuzz(folder: Path, count: int, seed: int) -> None:
    paths = [str(Path(torchsan.__file__).parents[1]), str(Path(__file__).parents[2])]
    # One arena: the allocator must not reserve address space that counts against the limit.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"}
    # In memory where there is such a place: a disk takes milliseconds for each of so many small files.
    where = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else folder)
    command = [sys.executable, "-m", "tests.store.fuzz", f"{where}/store", str(count), str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60 + count / 50)
    finally:
        shutil.rmtree(where)
    assert done.returncode == 0, done.stderr[-4000:]
    ran, right, refused = map(int, done.stdout.split())
    assert ran == count
    # A fuzzer that only ever sees one of the two outcomes tests nothing.
    assert right > count / 10
    assert refused > count / 10


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ten_thousand_mutated_stores_are_read_right_or_refused(tmp_path: Path, seed: int) -> None:
    fuzz(tmp_path, 10_000, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_fifty_thousand_more_mutated_stores_are_read_right_or_refused(tmp_path: Path, seed: int) -> None:
    fuzz(tmp_path, 50_000, seed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [-1]),
        ("shape", [2**62]),
        ("shape", [2**63]),
        ("shape", [2**40, 2**40]),
        ("shape", [5, 5]),
        ("shape", ["4"]),
        ("shape", None),
        ("stride", [-1]),
        ("stride", [2**62]),
        ("stride", [2]),
        ("start", 1),
        ("start", -1),
        ("offset", -3),
        ("dtype", "float64"),
        ("dtype", "os.system"),
        ("layout", "pickle"),
        ("device", "../cpu"),
        ("requires_grad", 1),
        ("conj", True),
        ("blob", None),
        ("blob", {"digest": "../../etc/passwd", "nbytes": 16, "probe": None, "pack": None, "at": 0}),
        ("blob", {"digest": "0" * 64, "nbytes": 16, "probe": None, "pack": "../../../x", "at": 0}),
    ],
)
def test_metadata_out_of_bounds_are_refused(local: Place, field: str, value: Any) -> None:
    with local.open() as store:
        store.put_many({"x": torch.zeros(4), "y": torch.ones(3)})
    (log,) = (key for key in local.files() if key.endswith(".log"))
    lines = local.read(log).splitlines()
    record = json.loads(lines[0][17:])
    record["tensor"][field] = value
    text = json.dumps(record).encode()
    local.write(log, b"%016x %b\n%b\n" % (xxhash.xxh3_64_intdigest(text), text, lines[1]))
    with pytest.raises(StoreError, match=r"tensor 'x' are malformed.*malformed-metadata"):
        local.open().get("x")
    report = local.open().fsck()
    assert [problem.where for problem in report.problems] == ["x"]
    assert torch.equal(local.open().get("y"), torch.ones(3))


def test_a_blob_that_claims_to_be_huge_allocates_nothing(local: Place) -> None:
    with local.open() as store:
        store.put("x", torch.zeros(4))
    (log,) = (key for key in local.files() if key.endswith(".log"))
    record = json.loads(local.read(log)[17:])
    record["tensor"]["shape"] = [2**60]
    record["tensor"]["blob"]["nbytes"] = 2**62
    text = json.dumps(record).encode()
    local.write(log, b"%016x %b\n" % (xxhash.xxh3_64_intdigest(text), text))
    with pytest.raises(StoreError, match=r"truncated.*corrupt-blob"):
        local.open().get("x")
