from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchsan.files import high_descriptors, identity, moved_up, open_plain


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


def test_what_is_opened_out_of_the_way_leaves_the_low_numbers_to_the_program(tmp_path: Path) -> None:
    before = os.open(tmp_path / "before", os.O_CREAT)
    os.close(before)
    with high_descriptors():
        ours = [os.open(tmp_path / str(n), os.O_CREAT) for n in range(4)]
    after = os.open(tmp_path / "after", os.O_CREAT)
    assert after == before
    assert min(ours) > 800
    for number in (after, *ours):
        os.close(number)


FEW = """
import os, resource, sys
from torchsan.files import high_descriptors

folder, room = sys.argv[1], int(sys.argv[2])
lowest = os.open(f"{folder}/lowest", os.O_CREAT)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with high_descriptors():
    for n in range(min(room, 3)):
        os.open(f"{folder}/{n}", os.O_CREAT)
"""


@pytest.mark.parametrize("room", [0, 1, 3, 20])
def test_where_few_descriptors_are_allowed_those_are_used(tmp_path: Path, room: int) -> None:
    # In a process of its own: in this one there may be others open above the lowest that is free.
    command = [sys.executable, "-c", FEW, str(tmp_path), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 1 + min(room, 3)


def test_a_descriptor_that_is_moved_leads_to_the_same_file(tmp_path: Path) -> None:
    number = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    high = moved_up(number)
    assert high > 800
    assert identity(high) == identity(tmp_path / "file")
    assert not os.get_inheritable(high)
    os.close(high)
