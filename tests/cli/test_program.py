"""What is recorded when the program cannot be watched at all."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchsan
from torchsan.cli.program import run_program
from torchsan.options import Options
from torchsan.recording import Reader
from torchsan.recording.folder import create_folder
from torchsan.report.verdict import verdict


@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        (RuntimeError("no hook"), "cannot watch the program: RuntimeError: no hook", 3),
        (torchsan.UnsupportedTorchError("too old", slug="torch-too-old"), "too old", 3),
    ],
)
def test_why_a_session_could_not_open_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, status: int
) -> None:
    def attach(*_: object) -> None:
        raise error

    monkeypatch.setattr("torchsan.watch.attach", attach)
    folder = create_folder(tmp_path / "run", command=["x.py"], options=Options())
    with pytest.raises(SystemExit):
        run_program(str(folder), ["x.py"])
    recording = Reader(folder)
    assert recording.failure is not None
    assert recording.failure.message == message
    assert verdict(recording).exit == status
