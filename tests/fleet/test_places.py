"""Where many recordings are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.conftest import MakeRun
from torchsan.errors import RecordingError
from torchsan.fleet import find_recordings, several


def test_folders_globs_and_recordings_each_once(runs: Path) -> None:
    assert len(find_recordings([str(runs)])) == 12
    one = str(runs / "day-0" / "run-3")
    assert find_recordings([one, one]) == [one]
    assert find_recordings([f"{runs}/day-1/*", f"{runs}/*/run-7"]) == sorted(
        (str(f) for f in (runs / "day-1").iterdir()), key=str
    )


def test_a_link_is_not_followed(runs: Path) -> None:
    (runs / "loop").symlink_to(runs)
    assert len(find_recordings([str(runs)])) == 12


@pytest.mark.parametrize("place", ["nothing", "nothing/*", "."])
def test_no_recording_is_an_error(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordingError, match="no recording at"):
        find_recordings([place])


def test_one_recording_and_the_ranks_of_one_job_are_not_several(runs: Path, make_run: MakeRun) -> None:
    one = str(runs / "day-0" / "run-3")
    assert several([one, one])
    assert several([str(runs)])
    assert several([f"{runs}/*"])
    assert not several([one])
    assert not several([str(runs / "nothing")])
    make_run("job/rank-0")
    make_run("job/rank-1")
    assert not several([str(runs / "job")])


def test_urls_and_their_globs(runs: Path) -> None:
    assert len(find_recordings([f"file://{runs}"])) == 12
    assert len(find_recordings([f"file://{runs}/day-1/run-*"])) == 6
