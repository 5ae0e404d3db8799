"""The database of results: nothing that was added is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sweep.made_up import finding, result
from torchsan.errors import UsageError
from torchsan.sweep.results import Outcome, Results, place_for


def test_what_was_added_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    wrong = result("wrong", finding(), covers=("forward fused amin",))
    crashed = result("crashed", outcome=Outcome.CRASHED, signal=4, output="Illegal instruction")
    with Results(tmp_path / "new" / "folder") as results:
        results.add(wrong)
        results.add(crashed)
        results.note("swept", ["ops", "amin"])
    with Results(tmp_path / "new" / "folder") as results:
        assert list(results) == [wrong, crashed]
        assert results.get(wrong.address) == wrong
        assert results.get("nothing") is None
        assert results.noted("swept") == ["ops", "amin"]
        assert results.noted("nothing") is None


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as error:
        Results(tmp_path / "file")
    assert error.value.slug == "unwritable-out"


def test_a_folder_with_results_is_used_only_to_resume(tmp_path: Path) -> None:
    with Results(tmp_path / "a"):
        pass
    with pytest.raises(UsageError):
        place_for(tmp_path / "a", resume=False)
    assert place_for(tmp_path / "a", resume=True) == tmp_path / "a"
    assert place_for(tmp_path / "b", resume=False) == tmp_path / "b"


def test_to_resume_without_a_folder_is_to_take_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fresh = place_for(None, resume=True)
    assert fresh.parts[0] == "torchsan-sweeps"
    for name in ("2026-01-01-000000", "2026-01-02-000000"):
        with Results(Path("torchsan-sweeps", name)):
            pass
    os.mkdir("torchsan-sweeps/2027-no-results")
    assert place_for(None, resume=True) == Path("torchsan-sweeps/2026-01-02-000000")
    assert place_for(None, resume=False) not in (fresh.parent / "2026-01-02-000000", fresh.parent / "2027-no-results")
