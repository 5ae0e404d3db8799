from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchsan.recording.folder import write_atomically


def test_a_link_that_waits_where_a_report_is_written_first_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mine = tmp_path / "report.html", tmp_path / "mine"
    mine.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    for name in (f".report.html.{os.getpid()}.tmp", ".torchsan-guessed.tmp"):
        (tmp_path / name).symlink_to(mine)
    with pytest.raises(FileExistsError):
        write_atomically(theirs, "report")
    monkeypatch.undo()
    theirs.symlink_to(mine)
    write_atomically(theirs, "report")
    assert (mine.read_text(), theirs.read_text(), theirs.is_symlink()) == ("mine", "report", False)


def test_what_cannot_be_written_leaves_no_half_of_it(tmp_path: Path) -> None:
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(OSError):  # of whatever kind
        write_atomically(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
