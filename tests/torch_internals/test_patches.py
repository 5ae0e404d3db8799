"""Seams that are replaced and put back, in modules that are imported meanwhile."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from torchsan.torch_internals import patches
from torchsan.torch_internals.patches import Patches, watch_seams
from torchsan.torch_internals.seams import Seam

SOURCE = "class Scheduler:\n    def run(self, n): return n\ndef other(): return 'as it is'\n"


def listed(name: str, *parameters: str, user: str = "values") -> Seam:
    return Seam(module="drifting", name=name, parameters=parameters, users=frozenset([user]), to="see")


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture(autouse=True)
def drifting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is not imported yet, and a table of what is needed of it."""
    (tmp_path / "drifting.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "drifting", raising=False)
    table = (listed("Scheduler.run", "self", "n"), listed("Scheduler.gone"), listed("other", "x", user="memory"))
    monkeypatch.setattr(patches, "SEAMS", table)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_seam_is_wrapped_and_put_back(loaded: bool) -> None:
    if loaded:
        importlib.import_module("drifting")
    own = Patches(_raise)
    own.wrap("drifting", "Scheduler.run", lambda original, self, n: original(self, n) + 1)
    found: Any = importlib.import_module("drifting")
    assert found.Scheduler().run(1) == 2
    own.restore()
    assert found.Scheduler().run(1) == 1
    assert not [f for f in sys.meta_path if type(f).__module__.startswith("torchsan")]


@pytest.mark.parametrize("name", ["Scheduler.gone", "other"])
def test_a_seam_that_is_missing_or_different_is_left_alone_and_the_import_goes_on(name: str) -> None:
    own = Patches(_raise)
    own.wrap("drifting", name, lambda original, *args: pytest.fail("replaced"))
    found: Any = importlib.import_module("drifting")
    assert found.other() == "as it is"
    own.restore()


def test_what_fails_in_the_middle_of_an_import_is_reported_and_raises_nothing() -> None:
    failures: list[Exception] = []
    own = Patches(failures.append)
    own.when_imported("drifting", lambda loaded: loaded.renamed)
    importlib.import_module("drifting")
    assert [type(e) for e in failures] == [AttributeError]
    own.restore()


def test_a_name_that_is_not_in_the_table_cannot_be_replaced() -> None:
    own = Patches(_raise)
    with pytest.raises(StopIteration):
        own.wrap("drifting", "Scheduler.unlisted", lambda original: None)
    own.restore()


def test_only_the_checks_that_need_a_missing_seam_are_turned_off() -> None:
    off: list[tuple[str, str]] = []
    with watch_seams(["values", "stages"], lambda user, reason: off.append((user, reason))):
        assert off == []
        importlib.import_module("drifting")
    ((user, reason),) = off
    assert user == "the values check"
    assert reason.endswith("has no drifting.Scheduler.gone, which it needs to see")


def test_threads_may_import_meanwhile() -> None:
    own = Patches(_raise)
    own.wrap("drifting", "Scheduler.run", lambda original, self, n: n)
    threads = [threading.Thread(target=importlib.import_module, args=("drifting",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own.restore()
    assert sys.modules["drifting"].Scheduler().run(3) == 3


def test_what_is_replaced_is_not_taken_for_another_pytorch() -> None:
    own = Patches(_raise)
    own.replace("drifting", "Scheduler.run", lambda original: lambda *other_parameters: original(*other_parameters))
    importlib.import_module("drifting")
    assert patches.problem(listed("Scheduler.run", "self", "n")) is None
    own.restore()
