"""A file in the recording's folder, or a signal, asks for a check of everything."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from torchsan.recording import Recorder, Writer
from torchsan.watch.observer import Observer
from torchsan.watch.requests import REQUEST, Requests


class Asked(Observer):
    times = 0

    def asked(self) -> None:
        self.times += 1


def test_a_file_is_seen_once_removed_and_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    observer = Asked()
    writer = Writer.create(tmp_path / "run", command=[])
    requests = Requests(writer, [observer], clock=lambda: now)
    requests.poll()
    (writer.path / REQUEST).touch()
    requests.poll()  # Not so soon again.
    assert (observer.times, capsys.readouterr().err) == (0, "")
    now = 1.0
    requests.poll()
    assert not (writer.path / REQUEST).exists()
    assert capsys.readouterr().err == "torchsan: the next call of each graph is checked, as you ask\n"
    now = 2.0
    requests.poll()
    assert observer.times == 1
    writer.close()


def test_a_folder_of_that_name_and_a_recording_in_memory_ask_for_nothing(tmp_path: Path) -> None:
    observer = Asked()
    Requests(Recorder(), [observer]).poll()
    writer = Writer.create(tmp_path / "run", command=[])
    (writer.path / REQUEST).mkdir()
    Requests(writer, [observer]).poll()
    writer.close()
    assert observer.times == 0


def test_a_signal_asks_and_then_means_what_it_meant_before() -> None:
    observer = Asked()
    before = signal.getsignal(signal.SIGUSR1)
    with Requests(Recorder(), [observer]).attached():
        os.kill(os.getpid(), signal.SIGUSR1)
    assert (observer.times, signal.getsignal(signal.SIGUSR1)) == (1, before)
