from __future__ import annotations

import argparse
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file

from torchsan.cli import store as command
from torchsan.errors import StoreError, UsageError
from torchsan.store import Store


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["store", *words])
    status = args.run(args)
    assert isinstance(status, int)
    return status


@pytest.fixture
def path(tmp_path: Path) -> str:
    with Store(tmp_path / "store") as store:
        store.put_many(
            {
                "a/x": torch.arange(6.0).reshape(2, 3),
                "a/b": torch.arange(3).to(torch.bfloat16),
                "s": torch.eye(2).to_sparse(),
                "large": torch.zeros(50_000),
            }
        )
    return str(tmp_path / "store")


def test_ls_lists_tensors(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ls", path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a/b\tbfloat16\t[3]\t6 bytes",
        "a/x\tfloat32\t[2, 3]\t24 bytes",
        "large\tfloat32\t[50000]\t200000 bytes",
        "s\tfloat32\t[2, 2]\t40 bytes\tsparse_coo",
    ]
    run("ls", path, "a/")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_show_shows_metadata_and_values(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", path, "a/x") == 0
    out = capsys.readouterr().out
    assert "stride         [3, 1]" in out
    assert "24 bytes, in pack" in out
    assert "[3., 4., 5.]" in out


def test_get_writes_files(path: str, tmp_path: Path) -> None:
    expected = torch.arange(6.0).reshape(2, 3)
    assert run("get", path, "a/x", "--to", str(tmp_path / "x.npy")) == 0
    assert numpy.array_equal(numpy.load(tmp_path / "x.npy"), expected.numpy())
    assert run("get", path, "a/x", "a/b", "--to", str(tmp_path / "x.safetensors")) == 0
    read = load_file(tmp_path / "x.safetensors")
    assert torch.equal(read["a/x"], expected)
    assert read["a/b"].dtype == torch.bfloat16
    assert run("get", path, "a/x", "--to", str(tmp_path / "x.pt")) == 0
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True), expected)
    assert run("get", path, "s", "a/b", "--to", str(tmp_path / "many.pt")) == 0
    assert set(torch.load(tmp_path / "many.pt", weights_only=True)) == {"s", "a/b"}


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (("a/x", "--to", "x.txt"), "bad-format"),
        (("a/b", "--to", "x.npy"), "bad-format"),
        (("a/x", "a/b", "--to", "x.npy"), "bad-format"),
        (("s", "--to", "x.npy"), "bad-format"),
        (("s", "--to", "x.safetensors"), "bad-format"),
        (("nope", "--to", "x.npy"), "tensor-not-found"),
    ],
)
def test_get_refuses_what_cannot_be(path: str, words: tuple[str, ...], slug: str) -> None:
    with pytest.raises((UsageError, StoreError), match=slug):
        run("get", path, *words)


def test_elements_that_share_memory_are_not_written_as_more_than_a_disk_holds(path: str, tmp_path: Path) -> None:
    with Store(path) as store:
        store.put("wide", torch.ones(1).expand(2**34))
    for suffix in (".npy", ".safetensors"):
        with pytest.raises(UsageError, match=r"are 64\.0 GiB, many times what is stored.*\.pt file \[too-large\]"):
            run("get", path, "wide", "--to", str(tmp_path / f"x{suffix}"))
    assert run("get", path, "wide", "--to", str(tmp_path / "x.pt")) == 0
    assert (tmp_path / "x.pt").stat().st_size < 10_000
    assert torch.load(tmp_path / "x.pt").shape == (2**34,)
    assert run("show", path, "wide") == 0


def test_a_shape_that_numpy_does_not_know_is_written_otherwise(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put("x", torch.empty(0, 1 << 62))
    with pytest.raises(UsageError, match="numpy cannot hold"):
        run("get", str(tmp_path / "store"), "x", "--to", str(tmp_path / "x.npy"))
    assert run("get", str(tmp_path / "store"), "x", "--to", str(tmp_path / "x.pt")) == 0


def test_a_recording_is_not_sent_into_itself(path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    for to in (path, f"{path}/sub", f"file://{path}/sub", str(tmp_path / "link" / "sub")):
        with pytest.raises(UsageError, match="itself"):
            run("sync", path, "--to", to)


def test_fsck_says_clean_or_what_is_damaged(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fsck", path) == 0
    assert capsys.readouterr().out == "clean: 4 tensors, 5 blobs, 200070 bytes\n"
    (blob,) = Path(path).glob("blobs/*/*")
    blob.write_bytes(b"\x01" + blob.read_bytes()[1:])
    assert run("fsck", path) == 1
    out = capsys.readouterr().out
    assert "damaged: large: the data of tensor 'large'" in out
    assert "1 problems: 4 tensors" in out


def test_gc_removes_what_is_not_used(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    Store(path).delete("large")
    assert run("gc", path) == 0
    assert "removed 1 blobs; freed 20" in capsys.readouterr().out
    assert run("fsck", path) == 0


def test_gc_gives_up_what_is_damaged_only_when_told_to(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (blob,) = Path(path).glob("blobs/*/*")
    blob.unlink()
    with pytest.raises(StoreError, match="--drop-damaged"):
        run("gc", path)
    assert run("gc", path, "--drop-damaged") == 0
    assert "dropped: large" in capsys.readouterr().out


def test_a_path_without_a_store_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-store"):
        run("ls", str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()
