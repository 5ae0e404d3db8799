"""A file in the recording's folder asks for a check of everything."""

from __future__ import annotations

from pathlib import Path

from torchsan.recording import Recorder, Writer
from torchsan.watch.requests import REQUEST, Requests


def test_a_file_is_seen_once_and_removed(tmp_path: Path) -> None:
    now = 0.0
    writer = Writer.create(tmp_path / "run", command=[])
    requests = Requests(writer, clock=lambda: now)
    assert not requests.made()
    (writer.path / REQUEST).touch()
    assert not requests.made()  # Not so soon again.
    now = 1.0
    assert requests.made()
    assert not (writer.path / REQUEST).exists()
    now = 2.0
    assert not requests.made()
    writer.close()


def test_a_folder_of_that_name_and_a_recording_in_memory_ask_for_nothing(tmp_path: Path) -> None:
    assert not Requests(Recorder()).made()
    writer = Writer.create(tmp_path / "run", command=[])
    (writer.path / REQUEST).mkdir()
    assert not Requests(writer).made()
    writer.close()
