"""`torchsan open`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from torchsan.cli.main import main

RECORDING = str(Path(__file__).parents[1] / "data" / "recording-schema-1")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def show(url: str) -> bool:
        found.append(url)
        return len(found) < 2

    monkeypatch.setattr(webbrowser, "open", show)
    return found


def test_the_page_is_written_and_shown(capsys: pytest.CaptureFixture[str], opened: list[str]) -> None:
    assert main(["open", RECORDING]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert "wrong-values" in page.read_text(encoding="utf-8")
    assert opened == [page.as_uri()]
    assert main(["open", RECORDING]) == 0  # There is no browser this time, and the page is there all the same.
    assert "found no browser" in capsys.readouterr().err


def test_without_a_browser_if_asked(capsys: pytest.CaptureFixture[str], opened: list[str]) -> None:
    assert main(["open", "--no-browser", RECORDING]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
    assert not opened


def test_what_is_no_recording_is_wrong_usage(tmp_path: Path, opened: list[str]) -> None:
    assert main(["open", str(tmp_path)]) == 2
    assert not opened
