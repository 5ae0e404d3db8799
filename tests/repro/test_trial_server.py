"""The process that forks trials, and the spare beside it for a script that has to fail alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types
import pytest

from torchsan.repro.trial_server import Answer, Request, Stopped, TrialServer, environment, run_anew

_SAYS = "import sys, beside\nprint(sys.argv, beside.x, 'torchsan' in sys.modules)\nraise SystemError('wrong')\n"


@pytest.fixture(scope="module")
def server() -> Iterator[TrialServer]:
    with TrialServer() as server:
        yield server


def _request(folder: Path, script: str, *, work: str = "alone", timeout: float = 120) -> Request:
    folder.mkdir()
    (folder / "beside.py").write_text("x = 7")
    (folder / "repro.py").write_text(script)
    return Request(work=work, folder=str(folder), timeout=timeout)


def test_a_script_runs_in_its_folder_without_torchsan_and_fails_as_by_itself(
    server: TrialServer, tmp_path: Path
) -> None:
    """The first in the spare, the second in an interpreter of its own."""
    for name in ("first", "second"):
        answer = server.ask(_request(tmp_path / name, _SAYS))
        assert (answer.status, answer.timeout) == (1, False)
        said = (tmp_path / name / "output.txt").read_text().replace(f"{tmp_path / name}/", "").splitlines()
        assert said[:3] == [
            "['repro.py'] 7 False",
            "Traceback (most recent call last):",
            '  File "repro.py", line 3, in <module>',
        ]
        assert said[-1] == "SystemError: wrong"


def test_a_script_that_hangs_is_ended(server: TrialServer, tmp_path: Path) -> None:
    assert server.ask(_request(tmp_path / "here", "while True: pass", timeout=2)).timeout


def test_a_script_that_passes(server: TrialServer, tmp_path: Path) -> None:
    answer = server.ask(_request(tmp_path / "here", "import sys; sys.exit(0)", work="script"))
    assert (answer.status, answer.timeout) == (0, False)


def test_one_request_runs_in_an_interpreter_of_its_own(tmp_path: Path) -> None:
    assert run_anew(_request(tmp_path / "one", _SAYS, work="script")) == Answer(status=1, timeout=False)
    assert "['repro.py'] 7" in (tmp_path / "one" / "output.txt").read_text()
    assert run_anew(_request(tmp_path / "two", "while True: pass", work="script", timeout=3)).timeout


@pytest.mark.parametrize("caches", [True, False])
def test_without_caches_a_script_compiles_anew(tmp_path: Path, *, caches: bool) -> None:
    asks = "import torch, sys\nsys.exit(torch.compiler.config.force_disable_caches)\n"
    with TrialServer(caches=caches) as server:
        answers = [server.ask(_request(tmp_path / work, asks, work=work)) for work in ("script", "alone")]
    answers.append(run_anew(_request(tmp_path / "anew", asks, work="script"), caches=caches))
    assert [a.status for a in answers] == [0 if caches else 1] * 3


def test_nothing_of_it_is_left_when_it_is_stopped(tmp_path: Path) -> None:
    others = set(psutil.Process().children(recursive=True))
    with TrialServer() as server:
        server.get_ready()
        started = _wait_for(lambda: set(psutil.Process().children(recursive=True)) - others, 2)
    assert len(started) >= 2, "itself and the spare"
    assert _wait_for(lambda: {process for process in started if not process.is_running()}, len(started)) == started
    with pytest.raises(Stopped):
        server.ask(_request(tmp_path / "late", ""))


_ASKS = """
import sys
from torchsan.repro.trial_server import Request, TrialServer
TrialServer().ask(Request(work="script", folder=sys.argv[1], timeout=100))
"""


def test_nothing_of_it_is_left_when_the_process_that_started_it_dies(tmp_path: Path) -> None:
    request = _request(tmp_path / "here", "open('runs', 'w').close()\nwhile True: pass")
    line = [sys.executable, "-c", _ASKS, request.folder]
    with subprocess.Popen(line, env=environment()) as asking:
        deadline = time.monotonic() + 60
        while not (tmp_path / "here" / "runs").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        started = set(psutil.Process(asking.pid).children(recursive=True))
        asking.kill()
    assert len(started) >= 3, "the server, the spare and the trial"
    assert _wait_for(lambda: {process for process in started if not process.is_running()}, len(started)) == started


def _wait_for(found: Callable[[], set[psutil.Process]], at_least: int) -> set[psutil.Process]:
    deadline = time.monotonic() + 60
    while len(processes := found()) < at_least and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes


def test_modules_in_the_current_folder_are_not_imported_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a recording that somebody sent."""
    for name in ("sitecustomize", "usercustomize", "json", "torch", "mine"):
        (tmp_path / f"{name}.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    uses = "import json, sys\njson.dumps\ntry: import mine\nexcept ImportError: sys.exit(1)\n"
    assert run_anew(_request(tmp_path / "once", uses, work="script")).status == 1
    with TrialServer() as server:
        assert server.ask(_request(tmp_path / "alone", uses)).status == 1
        assert server.ask(_request(tmp_path / "script", uses, work="script")).status == 1
    assert not (tmp_path / "ran").exists()
    with TrialServer(str(tmp_path)) as server:
        assert server.ask(_request(tmp_path / "own", uses, work="script")).status == 0
    assert (tmp_path / "ran").exists()
