"""What the canary found is kept for one PyTorch, one processor and one torchsan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchsan.torch_internals import tried
from torchsan.torch_internals.tried import SWITCH, Tried, answer_file, failures_here, fingerprint, keep, last_try


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)


def test_an_answer_is_read_as_it_was_kept() -> None:
    assert last_try() is None
    answer = Tried(failures={"values": "it misses"}, seconds=3.5)
    assert keep(answer)
    assert last_try() == answer
    assert failures_here() == {"values": "it misses (`torchsan doctor --canary` tries again)"}


def test_what_is_not_finished_is_no_answer() -> None:
    keep(Tried(unfinished=2))
    assert failures_here() == {}


def test_nothing_counts_when_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(Tried(failures={"values": "it misses"}))
    monkeypatch.setenv(SWITCH, "off")
    assert failures_here() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"failures": {"values": 1}, "seconds": 1, "unfinished": 0}', "null"])
def test_a_file_that_is_something_else_is_nothing(text: str) -> None:
    file = answer_file()
    assert file is not None
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert last_try() is None
    assert failures_here() == {}


def changed_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tried, "torch_version", lambda: "2.99.0")


def changed_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tried, "_processor", lambda: ("another",))


def changed_capability(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")


def changed_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tried, "_torch_folder", lambda: tmp_path)


@pytest.mark.parametrize("change", [changed_version, changed_processor, changed_capability, changed_build])
def test_another_pytorch_or_processor_has_an_answer_of_its_own(
    change: Callable[[pytest.MonkeyPatch, Path], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = fingerprint()
    assert fingerprint() == before
    change(monkeypatch, tmp_path)
    assert fingerprint() != before


def test_without_a_place_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert not keep(Tried())
    assert last_try() is None
    monkeypatch.setattr(tried, "_torch_folder", lambda: None)
    assert answer_file() is None
