"""A program that is killed at any moment: what it had printed of a finding is in the recording, which can be read."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import torchsan
from torchsan.cli.main import main
from torchsan.errors import RecordingError
from torchsan.recording import Reader

# Everything that a run writes, as fast as it can; a finding is printed once it is recorded.
_PROGRAM = """
import sys
from pathlib import Path
from tests.samples import finding, graph
from torchsan.recording import Writer

writer = Writer.create(sys.argv[1], command=["x.py"])
for n in range(100_000):
    writer.graph(graph(n % 7))
    writer.artifact(f"kernel-{n % 50}.py", "x = 1\\n" * 100)
    print(writer.finding(finding(message="m" * (n % 3000))).id, flush=True)
    writer.skipped(f"thing {n}", "because")
"""
_SCRIPT = """
import sys
from tests.samples import finding
recorder = sys.modules["torchsan.session"].active()._recorder
for n in range(100_000):
    print(recorder.finding(finding()).id, flush=True)
"""


def killed(command: list[str], folder: Path, dice: random.Random) -> list[str]:
    """Start a program, kill it and all of its processes some time after its first word; return what it said."""
    source = str(Path(torchsan.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, str(Path(__file__).parents[2])])}
    said = folder / "said"
    with said.open("wb") as stream:
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 60
        while not said.stat().st_size and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.3))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return re.findall(r"^F\d+$(?=\n)", said.read_text(), re.MULTILINE)


def kill_writers(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        printed = killed([sys.executable, "-c", _PROGRAM, str(folder / "run")], folder, random.Random(seed))
        assert printed, seed
        found = [f.id for f in Reader(folder / "run").findings()]
        assert found[: len(printed)] == printed, seed
        assert not list((folder / "run" / "artifacts").glob("kernel*.tmp")), seed


def test_a_killed_run_keeps_the_findings_that_it_printed(tmp_path: Path) -> None:
    kill_writers(tmp_path, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_killed_runs_keep_the_findings_that_they_printed(tmp_path: Path, part: int) -> None:
    kill_writers(tmp_path, range(100 + 100 * part, 200 + 100 * part))


def test_torchsan_and_its_program_are_killed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    for seed in range(2):
        command = [sys.executable, "-m", "torchsan", "run", "--out", f"run-{seed}", "script.py"]
        printed = killed(command, tmp_path, random.Random(seed))
        assert [f.id for f in Reader(tmp_path / f"run-{seed}").findings()][: len(printed)] == printed
        assert main(["report", str(tmp_path / f"run-{seed}")]) == 1
        assert "was killed, or is still going on" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_while_it_starts_is_whole_or_says_why(tmp_path: Path, seed: int) -> None:
    source = str(Path(torchsan.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, str(Path(__file__).parents[2])])}
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not folder.exists():
        assert child.poll() is None
    time.sleep(seed * 0.002)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    try:
        Reader(folder)
    except RecordingError as e:
        assert e.slug == "no-recording"


def kill_training(tmp_path: Path, seed: int, whole: int, steps: int, seconds: int) -> None:
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = [str(tmp_path / "runs"), str(seed), str(whole), str(steps)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.killed_training", *words],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.endswith(f"{whole + steps} kills, 0 problems\n")


def test_a_killed_training_run_keeps_the_findings_that_it_printed(tmp_path: Path) -> None:
    kill_training(tmp_path, 0, 1, 10, 280)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_killed_training_runs_keep_the_findings_that_they_printed(tmp_path: Path, part: int) -> None:
    kill_training(tmp_path, 1 + part, 5, 95, 1700)
