"""Code that hangs, crashes, exits, forks or writes files: contained, and said."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import torchsan
from torchsan.kernels.contain import Channel, Child, Gone


def kinds(report: torchsan.KernelReport) -> set[str]:
    return {str(f.kind) for f in report.findings if f.severity == "error"}


def referee(kernel: object, seconds: float = 20.0, **options: int) -> torchsan.KernelReport:
    return torchsan.check_kernel(kernel, torch.exp, (torch.ones(4, 9),), time=seconds, **options)  # type: ignore[arg-type]


def test_a_message_comes_back() -> None:
    def echo(channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            channel.send(*message)

    with Child(echo, memory=1 << 30) as child:
        assert child.ask({"n": 1}, [b"abc", b""], seconds=10) == ({"n": 1}, [b"abc", b""])


def test_how_a_child_ended_is_known() -> None:
    with Child(lambda channel: os._exit(7), memory=1 << 30) as child, pytest.raises(Gone, match="status 7"):
        child.answer(seconds=10)
    with Child(lambda channel: os.abort(), memory=1 << 30) as child, pytest.raises(Gone, match="SIGABRT"):
        child.answer(seconds=10)
    with Child(lambda channel: time.sleep(60), memory=1 << 30) as child, pytest.raises(Gone, match="still running"):
        child.answer(seconds=0.2)


def test_of_much_output_the_last_words_are_kept_and_a_file_has_a_limit() -> None:
    def talks(channel: Channel) -> None:
        line = b"x" * (1 << 20)
        with suppress(OSError):
            for _ in range(1100):
                os.write(1, line)
        os.write(1, b"")
        os._exit(9)

    with Child(talks, memory=1 << 30) as child:
        with pytest.raises(Gone, match="status 9") as caught:
            child.answer(seconds=60)
        assert caught.value.said == "x" * 2000


def test_a_child_does_not_outlive_who_started_it() -> None:
    program = """if True:
        import os, time
        from torchsan.kernels.contain import Child
        child = Child(lambda channel: time.sleep(600), memory=1 << 30)
        print(child.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(started.stdout)
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_kernel_that_hangs_is_ended() -> None:
    def hangs(x: torch.Tensor) -> torch.Tensor:
        while True:
            time.sleep(1)

    began = time.monotonic()
    report = referee(hangs, seconds=5.0)
    assert kinds(report) == {"wrong-values"} and "still running" in report.findings[0].message
    assert time.monotonic() - began < 60


def test_a_kernel_that_crashes_is_reported() -> None:
    def crashes(x: torch.Tensor) -> torch.Tensor:
        import ctypes

        ctypes.string_at(8)
        return x

    report = referee(crashes)
    assert "SIGSEGV" in report.findings[0].message and not report


def test_a_kernel_that_exits_is_reported() -> None:
    def exits(x: torch.Tensor) -> torch.Tensor:
        os._exit(0)

    def politely(x: torch.Tensor) -> torch.Tensor:
        sys.exit(0)

    assert kinds(referee(exits)) == {"cheat"}
    assert "SystemExit" in referee(politely).findings[0].message


def test_a_kernel_that_forks_is_reported_and_leaves_no_process() -> None:
    def forks(x: torch.Tensor) -> torch.Tensor:
        os.fork()
        subprocess.Popen(["sleep", "4242"], start_new_session=True)
        return torch.exp(x)

    report = referee(forks)
    assert kinds(report) == {"cheat"}
    assert {"os.fork", "sleep"} <= {w for f in report.findings for w in f.message.replace(":", " ").split()}
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 4242" not in running


def test_a_kernel_that_writes_files_is_reported_and_refused(tmp_path: Path) -> None:
    file = tmp_path / "written"

    def writes(x: torch.Tensor) -> torch.Tensor:
        with suppress(OSError):
            file.write_text("x")
        os.system(f"echo x > {file}")
        return torch.exp(x)

    report = referee(writes)
    assert kinds(report) == {"cheat"} and str(file) in report.findings[0].message
    assert not file.exists()


def test_a_kernel_may_use_its_scratch_folder() -> None:
    def scratches(x: torch.Tensor) -> torch.Tensor:
        with tempfile.TemporaryDirectory() as folder:  # Removed by names that start from the folder's descriptor.
            (Path(folder) / "inner").mkdir()
            (Path(folder) / "inner" / "file").write_text("x")
        return torch.exp(x)

    assert referee(scratches)


def test_a_kernel_that_takes_all_memory_is_refused_it() -> None:
    def greedy(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + torch.ones(1 << 32).sum() * 0

    report = referee(greedy, memory=1 << 30)
    assert kinds(report) == {"wrong-values"} and "memory" in report.findings[0].message


def test_signals_to_others_are_refused() -> None:
    def kills(x: torch.Tensor) -> torch.Tensor:
        with suppress(PermissionError):
            os.kill(os.getppid(), 9)
        return torch.exp(x)

    assert kinds(referee(kills)) == {"cheat"}


def test_the_program_is_left_as_it_was() -> None:
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    x = torch.ones(4, 9)

    def changes(t: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(77)
        t.zero_()
        return torch.exp(t)

    assert not torchsan.check_kernel(changes, torch.exp, (x,))
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    assert bool((x == 1).all())


def test_a_child_that_works_gets_more_time_than_one_that_waits() -> None:
    def works(channel: Channel) -> None:
        until = time.process_time() + 0.4
        while time.process_time() < until:
            pass
        channel.send({"done": True})

    with Child(works, memory=1 << 30) as child:
        assert child.answer(seconds=0.25)[0] == {"done": True}

    def loops(channel: Channel) -> None:
        while True:
            pass

    with Child(loops, memory=1 << 30) as child, pytest.raises(Gone, match="still running"):
        child.answer(seconds=0.2)
