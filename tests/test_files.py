from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchsan.files import identity, open_plain


def test_a_descriptor_that_changed_hands_leads_elsewhere(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    mine, theirs = (os.open(file, os.O_CREAT | os.O_WRONLY) for file in (first, second))
    assert identity(mine) == identity(first) != identity(second)
    os.dup2(theirs, mine)
    assert identity(mine) == identity(second)
    os.close(mine)
    assert identity(mine) is None
    os.close(theirs)
    assert identity(tmp_path / "missing") is None


@pytest.mark.parametrize("what", ["pipe", "folder", "link to nowhere", "device", "link"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, what: str) -> None:
    file, plain = tmp_path / "file", tmp_path / "plain"
    plain.write_bytes(b"x")
    match what:
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "link to nowhere":
            file.symlink_to(tmp_path / "nowhere")
        case "device":
            file = Path("/dev/zero")
        case "link":
            file.symlink_to(plain)
    with pytest.raises(OSError):  # of whatever kind
        open_plain(file, follow=what != "link")
    number = open_plain(plain, follow=False)
    assert os.read(number, 2) == b"x"
    os.close(number)
