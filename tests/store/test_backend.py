"""A store of format 1, kept as files. If a test here fails, the format has changed: raise `FORMAT`, keep reading 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.store.tensors import same
from torchsan.store import Store
from torchsan.store.backend import FORMAT
from torchsan.store.metadata import SegmentId

GOLDEN = Path(__file__).parents[1] / "data" / "store-format-1"

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")


def contents() -> dict[str, torch.Tensor]:
    """Return what the golden store holds."""
    base = torch.arange(24, dtype=torch.float32)
    return {
        "a/float32": base.reshape(4, 6)[1:, ::2],
        "a/same storage": base[3:].view(torch.int32),
        "bfloat16": torch.arange(5).to(torch.bfloat16).requires_grad_(),
        "float8": torch.arange(5).to(torch.float8_e4m3fn),
        "conj": torch.arange(3).to(torch.complex64).conj(),
        "neg": torch.arange(3).to(torch.complex64).conj().imag,
        "scalar": torch.tensor(True),
        "empty": torch.empty(0, 3),
        "coo": torch.eye(3, dtype=torch.float64).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "large": torch.arange(70_000).to(torch.uint8),
        "ünïcode": torch.arange(2, dtype=torch.int16),
    }


def write(path: Path) -> None:
    """Write the golden store."""
    with Store(path) as store:
        store.put("gone", torch.ones(2))
        store.put_many(contents())
        store.put("scalar", torch.tensor(False))
        store.put("scalar", torch.tensor(True))
        store.delete("gone")


def test_the_golden_store_is_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "store")
    store = Store(tmp_path / "store")
    expected = contents()
    assert store.names() == sorted(expected)
    for name, tensor in store.get_many(expected).items():
        assert same(tensor, expected[name]), name
    assert store.describe("a/float32").offset == 6
    assert store.fsck()


def test_the_format_is_still_the_one_of_the_golden_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchsan.store.committing.time.time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr("torchsan.store.local.new_segment", lambda: SegmentId("0123456789abcdef-golden"))
    write(tmp_path / "store")
    assert FORMAT == 1
    golden, now = files(GOLDEN), files(tmp_path / "store")
    assert golden.keys() == now.keys()
    for name, data in golden.items():
        assert now[name] == data, name


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
