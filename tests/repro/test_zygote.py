"""The process that forks trials, and the spare beside it for a script that has to fail alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # has no types
import pytest

from torchsan.repro.trial_server import Stopped, TrialServer

_SAYS = "import sys, beside\nprint(sys.argv, beside.x, 'torchsan' in sys.modules)\nraise SystemError('wrong')\n"


@pytest.fixture(scope="module")
def zygote() -> Iterator[TrialServer]:
    with TrialServer() as zygote:
        yield zygote


def _ask(zygote: TrialServer, folder: Path, script: str, *, timeout: float = 120) -> dict[str, Any]:
    folder.mkdir()
    (folder / "beside.py").write_text("x = 7")
    (folder / "repro.py").write_text(script)
    request = {"work": "alone", "folder": str(folder), "words": ["repro.py"], "loads": [], "timeout": timeout}
    return zygote.ask(request)


def test_a_script_runs_in_its_folder_without_torchsan_and_fails_as_by_itself(
    zygote: TrialServer, tmp_path: Path
) -> None:
    """The first in the spare, the second in an interpreter of its own."""
    for name in ("first", "second"):
        answer = _ask(zygote, tmp_path / name, _SAYS)
        assert (answer["status"], answer["timeout"]) == (1, False)
        said = (tmp_path / name / "output.txt").read_text().splitlines()
        assert said[0] == "['repro.py'] 7 False"
        assert said[-1] == "SystemError: wrong"


def test_a_script_that_hangs_is_ended(zygote: TrialServer, tmp_path: Path) -> None:
    assert _ask(zygote, tmp_path / "here", "while True: pass", timeout=2)["timeout"]


def test_nothing_of_it_is_left_when_it_is_stopped() -> None:
    others = set(psutil.Process().children(recursive=True))
    with TrialServer() as zygote:
        zygote.get_ready()
        started = _wait_for(lambda: set(psutil.Process().children(recursive=True)) - others, 2)
    assert len(started) >= 2, "itself and the spare"
    assert _wait_for(lambda: {process for process in started if not process.is_running()}, len(started)) == started
    with pytest.raises(Stopped):
        zygote.ask({})


def _wait_for(found: Callable[[], set[psutil.Process]], at_least: int) -> set[psutil.Process]:
    deadline = time.monotonic() + 60
    while len(processes := found()) < at_least and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes
