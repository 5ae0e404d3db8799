"""What happens in an isolated child stays there."""

from __future__ import annotations

import mmap
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from torchsan.reference.isolation import Refused, fork_isolated, in_grandchild, obstacle


def said(function: Callable[[], object]) -> str:
    """What `function` returns in an isolated child, or how it was refused."""

    def serve(end: socket.socket) -> None:
        try:
            answer = str(function())
        except Refused as e:
            answer = f"refused: {e}"
        end.sendall(answer.encode())

    (end,) = fork_isolated(serve)
    with end:
        end.settimeout(30)
        text = b""
        while more := end.recv(4096):
            text += more
    return text.decode()


def test_output_and_files_are_written_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = (tmp_path / "log").open("w+")
    (tmp_path / "data").write_text("0123456789")
    reading = (tmp_path / "data").open("rb", buffering=0)
    reading.seek(3)
    log.write("before ")

    def reach_out() -> bytes:
        sys.stdout.write("child\n")
        sys.stdout.flush()
        log.write("child ")
        log.flush()
        return reading.read(4)

    assert said(reach_out) == "b'3456'"
    assert reading.read(4) == b"3456"
    reading.close()
    log.close()
    assert (tmp_path / "log").read_text() == "before "
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("reach_out", "answer"),
    [
        (lambda: Path("new").write_text("x"), "refused: it opens a file for writing (w)"),
        (lambda: subprocess.run(["true"], check=False), "refused: it calls subprocess.Popen"),
        (lambda: os.kill(os.getppid(), 0), "refused: it calls os.kill"),
        (lambda: socket.create_connection(("127.0.0.1", 9)), "refused: it calls socket.getaddrinfo"),
    ],
)
def test_what_would_reach_out_is_refused(
    reach_out: Callable[[], object], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(reach_out) == answer
    assert list(tmp_path.iterdir()) == []


def test_shared_memory_and_random_numbers_are_its_own() -> None:
    shared = torch.zeros(4).share_memory_()  # type: ignore[no-untyped-call]  # torch's own is untyped
    page = mmap.mmap(-1, 4096)
    random.seed(1)
    expected = random.Random(1).random()

    def change() -> float:
        shared.fill_(7)
        page[:1] = b"7"
        return random.random()

    assert said(change) == str(expected)
    assert shared.tolist() == [0, 0, 0, 0]
    assert page[:1] == b"\0"
    assert random.random() == expected


def test_no_child_is_left_to_wait_for() -> None:
    # Other tests of this process may have left children of their own, such as those that compile for PyTorch.
    before = {child.pid for child in psutil.Process().children()}
    assert said(lambda: 1) == "1"
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_child_ends_when_our_end_is_closed() -> None:
    def serve(end: socket.socket) -> None:
        end.sendall(str(os.getpid()).encode())
        in_grandchild(lambda: end.sendall(b";"))
        end.recv(1)

    (end,) = fork_isolated(serve)
    text = b""
    while not text.endswith(b";"):
        text += end.recv(64)
    end.close()
    pid = int(text[:-1])
    for _ in range(200):
        if not Path(f"/proc/{pid}/stat").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        signal.sigtimedwait([], 0.05)
    pytest.fail("the child is still there")


def test_a_program_that_handles_sigchld_gets_no_children() -> None:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        assert "SIGCHLD" in str(obstacle())
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert obstacle() is None


def test_a_folder_that_is_there_can_be_made_again(tmp_path: Path) -> None:
    def make(folder: Path) -> bool:
        folder.mkdir(exist_ok=True)
        return folder.is_dir()

    assert said(lambda: make(tmp_path)) == "True"
    assert said(lambda: make(tmp_path / "new")) == "refused: it calls os.mkdir"
    assert not (tmp_path / "new").exists()
