"""A store that somebody else made: links in it are not followed, and files that are not its own are left alone."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from torchsan.cli.main import main
from torchsan.errors import StoreError
from torchsan.store import Store
from torchsan.store.index import put_line
from torchsan.store.local import LocalBackend


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store(tmp_path / "store") as made:
        made.put_many({"small": torch.arange(6.0), "large": torch.zeros(100_000), "other": torch.ones(3)})
    return tmp_path / "store"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder of the user's, with names that the collection looks for."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for name in ("thesis.tex", "app.log", "secret.pack", "x.old", "notes.tmp", "0" * 24, "0" * 64, "zz" * 32):
        (folder / name).write_text("mine")
        os.utime(folder / name, (1, 1))
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["log", "aside", "tmp", "blobs", "blobs/th", "blobs/00", "damaged"])
@pytest.mark.parametrize("flags", [[], ["--drop-damaged"]])
def test_a_folder_that_is_a_link_is_not_collected(store: Path, documents: Path, name: str, flags: list[str]) -> None:
    place = store / name
    if place.exists():
        place.rename(store / "away")
    place.symlink_to(documents)
    before = contents(documents)
    main(["store", "gc", *flags, str(store)])
    with Store(store) as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchsan.store.upkeep._SETTLE", 0.0)
        try:
            opened.gc(grace=0.0)
        except StoreError:
            assert name != "damaged"
    assert contents(documents) == before


@pytest.mark.parametrize("what", ["", "blobs", "blobs/*"])
def test_a_folder_that_becomes_a_link_while_it_is_collected_is_not_followed(
    store: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path / "mine") as mine:
        mine.put_many({"a": torch.arange(100_000), "b": torch.arange(200_000)})
    with Store(store) as theirs:  # They know what I have.
        theirs.put_many({"a": torch.arange(100_000), "b": torch.arange(200_000)})
        theirs.delete("a")
        theirs.delete("b")
    swapped: list[Path] = []

    def swap(*_: object) -> None:
        places = list(store.glob(what)) if what else [store]
        for n, place in enumerate([] if swapped else places):
            twin = tmp_path / "mine" / place.relative_to(store)
            if twin.exists():
                place.rename(tmp_path / f"away-{n}")
                place.symlink_to(twin)
                swapped.append(place)
        monkeypatch.undo()
        raise FileNotFoundError  # Another collection is at work: this one begins again.

    monkeypatch.setattr("torchsan.store.upkeep._check_independence", swap)
    with Store(store) as theirs, suppress(StoreError):
        theirs.gc(grace=0.0)
    assert swapped
    with Store(tmp_path / "mine") as mine:
        assert mine.fsck()
        assert torch.equal(mine.get("b"), torch.arange(200_000))


@pytest.mark.parametrize("flags", [[], ["--drop-damaged"]])
def test_files_of_other_names_are_not_collected(store: Path, flags: list[str]) -> None:
    names = ["log/notes.log", "log/notes.pack", "log/x.tmp", "aside/notes.txt", "tmp/notes.txt", "notes.tmp"]
    names += ["blobs/no/notes.txt", "blobs/ab/ab.txt"]
    for name in names:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("mine")
    assert main(["store", "gc", *flags, str(store)]) == 0
    with Store(store) as opened:
        opened.gc(grace=0.0)
        assert torch.equal(opened.get("small"), torch.arange(6.0))
    assert all((store / name).read_text() == "mine" for name in names)


@pytest.mark.parametrize("pattern", ["log/*.pack", "log/*.log", "blobs/*/*", "torchsan-store.json"])
def test_a_file_that_is_a_link_is_not_opened(store: Path, tmp_path: Path, pattern: str) -> None:
    (file,) = list(store.glob(pattern))[:1]
    file.rename(tmp_path / "outside")
    file.symlink_to(tmp_path / "outside")
    assert main(["store", "fsck", str(store)]) != 0


@pytest.mark.parametrize("what", ["pipe", "link", "device"])
def test_a_log_that_is_no_plain_file_is_a_problem(store: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    (log,) = store.glob("log/*.log")
    log.unlink()
    os.mkfifo(log) if what == "pipe" else log.symlink_to("/dev/zero" if what == "device" else "/etc/passwd")
    assert main(["store", "fsck", str(store)]) == 1
    assert "no plain file, so what it says is not read" in capsys.readouterr().out


def test_names_in_a_store_cannot_control_the_terminal(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(store) as opened:
        record = opened.record("small")
    (log,) = store.glob("log/*.log")
    with log.open("ab") as file:
        file.write(put_line("\x1b[2J\u202e\rgraph", 2**62, record).line)
    (store / "log" / "zz\x1b[2J.log").write_text("no record\n")
    assert main(["store", "fsck", str(store)]) == 1
    for words in (["ls"], ["fsck"], ["gc"], ["gc", "--drop-damaged"]):
        main(["store", words[0], *words[1:], str(store)])
        said = capsys.readouterr()
        assert not {"\x1b", "\u202e", "\r"} & set(said.out + said.err), words


def test_collections_wait_for_each_other(store: Path) -> None:
    """They would make each other begin again, and eight of them give up."""
    first, second = (LocalBackend(str(store), durable=False) for _ in range(2))
    entered = threading.Event()

    def collect() -> None:
        with second.collecting():
            entered.set()

    with first.collecting():
        thread = threading.Thread(target=collect)
        thread.start()
        assert not entered.wait(0.3)
    assert entered.wait(60)
    thread.join()


def _lose(store: Path, name: str) -> torch.Tensor:
    """Put a tensor and remove its bytes, as a collection does that a writer has not noticed yet."""
    before = set((store / "blobs").rglob("*"))
    tensor = torch.randn(1 << 16)
    Store(store).put(name, tensor)
    for blob in set((store / "blobs").rglob("*")) - before:
        if blob.is_file():
            blob.unlink()
    return tensor


def test_a_put_that_is_about_to_be_repeated_is_no_damage(store: Path) -> None:
    tensor = _lose(store, "late")
    writer = threading.Timer(0.2, lambda: Store(store).put("late", tensor))
    writer.start()
    Store(store).gc()
    writer.join()
    assert torch.equal(Store(store).get("late"), tensor)
    assert Store(store).fsck()


def test_what_stays_missing_is_damage(store: Path) -> None:
    _lose(store, "gone")
    with pytest.raises(StoreError, match="the data of tensor 'gone'"):
        Store(store).gc()
    assert Store(store).gc(drop_damaged=True).dropped == ("gone",)


def test_a_store_that_nothing_was_put_into_is_collected(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        assert store.gc().blobs == 0
