"""What only a store in a local folder can meet: pipes in the place of files, and descriptors that change hands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchsan.errors import StoreError
from torchsan.store import Store

_CLOSES = """
import os, sys
import torch
from torchsan import Store

store = Store(sys.argv[1] + "/store")
for turn in range(3):
    store.put(f"small-{turn}", torch.full((4,), float(turn)))
    store.put(f"large-{turn}", torch.full((40_000,), float(turn)))
    os.closerange(3, 4096)
    for n in range(30):
        number = os.open(f"{sys.argv[1]}/mine-{turn}-{n}", os.O_RDWR | os.O_CREAT)
        os.write(number, b"mine")
    store.put(f"small-{turn}-after", torch.full((5,), float(turn)))
    store.put(f"queued-{turn}", torch.full((6,), float(turn)), wait=False)
os.closerange(3, 4096)
number = os.open(f"{sys.argv[1]}/mine-last", os.O_RDWR | os.O_CREAT)
store.close()
os.write(number, b"mine")
"""


def test_a_program_that_closes_our_descriptors_keeps_its_files_and_its_tensors(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _CLOSES, str(tmp_path)], check=True)
    mine = list(tmp_path.glob("mine-*"))
    assert len(mine) == 91
    assert {file.read_bytes() for file in mine} == {b"mine"}
    with Store(tmp_path / "store") as store:
        assert store.fsck()
        assert len(store.names()) == 12
        for turn in range(3):
            assert torch.equal(store.get(f"small-{turn}-after"), torch.full((5,), float(turn)))


def test_a_pipe_in_the_place_of_the_manifest_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "torchsan-store.json")
    script = "import sys; from torchsan import Store; Store(sys.argv[1]).names()"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not a plain file" in done.stderr
    assert "[store-io]" in done.stderr


def test_a_blob_whose_descriptor_is_closed_meanwhile_is_refused_and_not_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another thread of the program closes all descriptors while the background writer is at work."""
    mine = os.open(tmp_path / "mine", os.O_CREAT | os.O_RDWR)
    writing: list[int] = []
    write = os.write

    def take_over(number: int, data: memoryview) -> int:
        count = write(number, data[:1000])
        if not writing:
            writing.append(number)
            os.dup2(mine, number)
        return count

    store = Store(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr("torchsan.store.local.os.write", take_over)
        with pytest.raises(StoreError, match="store-io"):
            store.put("x", torch.ones(100_000))
    assert (tmp_path / "mine").read_bytes() == b""
    os.fstat(writing[0])  # Not closed, since it is the program's now.
    os.close(writing[0])
    os.close(mine)
    store.put("x", torch.ones(100_000))
    store.close()
    assert store.fsck()
