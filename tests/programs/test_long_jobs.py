"""Jobs that run for long under a budget: they stay as fast and as small as they were, and lose nothing that was found.

The first takes as many seconds as TORCHSAN_LONG says, two minutes without it; 7200 is what a release is tried with.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

import torchsan
from tests.programs.test_full_disk import small_disk
from torchsan.recording import Reader

JOB = str(Path(__file__).with_name("long_job.py"))
SECONDS = os.environ.get("TORCHSAN_LONG", "120")
pytestmark = pytest.mark.slow


def start(folder: Path, *words: str, options: tuple[str, ...] = (), budget: str = "20%") -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-m", "torchsan", "run", "--budget", budget, *options, JOB, *words]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_finding(recording: Path, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Reader(recording).findings():
                return
        except torchsan.TorchsanError:
            pass  # Not begun yet.
        time.sleep(0.5)
    pytest.fail("nothing was found")


@pytest.mark.timeout(1800 + int(SECONDS))
def test_neither_memory_nor_the_time_of_a_step_grows(tmp_path: Path) -> None:
    job = start(tmp_path, SECONDS, options=("--out", "run"), budget="1%")
    out, err = job.communicate()
    assert job.returncode == 0, err
    rows = [tuple(map(float, line.split())) for line in out.splitlines()]
    quarter = len(rows) // 4
    assert quarter >= 2, out
    early, late = rows[quarter : 2 * quarter], rows[-quarter:]
    assert max(row[2] for row in late) < max(row[2] for row in early) + 4, "memory grows"
    assert median(row[1] for row in late) < 1.05 * median(row[1] for row in early), "steps become slower"
    files = [f for f in (tmp_path / "run").rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 20e6
    shares = [event["share"] for event in Reader(tmp_path / "run").events("sampling")]
    assert shares[-1] <= 0.011


def killed(job: subprocess.Popen[str], recording: Path) -> None:
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


def ended(job: subprocess.Popen[str], recording: Path) -> None:
    job.communicate()


@pytest.mark.parametrize("end", [killed, ended])
def test_what_was_found_is_in_the_recording_however_the_job_ends(
    tmp_path: Path, end: Callable[[subprocess.Popen[str], Path], None]
) -> None:
    job = start(tmp_path, "600" if end is killed else "steps:3000", "--wrong-from", "200", options=("--out", "run"))
    wait_for_finding(tmp_path / "run")
    end(job, tmp_path / "run")
    found = [f for f in Reader(tmp_path / "run").findings() if f.severity == "error"]
    assert found
    assert {f.kind for f in found} == {"wrong-values"}
    keys = [(f.graph, f.kernel, f.buffer, f.kind) for f in found]
    assert len(keys) == len(set(keys))  # Counted, not repeated.
    report = subprocess.run(
        [sys.executable, "-m", "torchsan", "report", "--json", "-", "run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert report.returncode == 1
    assert json.loads(report.stdout)["findings"]
    if end is ended:
        assert max(f.evidence.get("times", 1) for f in found) > 1


def test_a_disk_that_fills_up_in_the_midst_ends_no_job_and_loses_no_finding(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16_384) as disk:
        job = start(tmp_path, "steps:4000", "--wrong-from", "1500", options=("--out", str(disk / "run")))
        assert job.stdout is not None
        for line in job.stdout:
            if int(line.split()[0]) >= 1000:
                break
        with pytest.raises(OSError, match="space"):
            while True:
                with (disk / "ballast").open("ab", buffering=0) as ballast:
                    ballast.write(bytes(4096))
        out, err = job.communicate()
        recorded = [f.id for f in Reader(disk / "run").findings()]
    assert re.search(r"^\d+00 ", out, re.MULTILINE)  # It went on.
    said = re.findall(r"torchsan: not recorded: (F\d+): error: wrong-values", err)
    assert "the recording is incomplete" in err
    assert recorded or said, err


def test_a_bucket_that_vanishes_in_the_midst_leaves_the_recording_here(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    url = f"file://{bucket}/run"
    job = start(tmp_path, "steps:2000", "--wrong-from", "500", options=("--out", url))
    until = time.monotonic() + 120
    while not (bucket / "run" / "manifest.json").exists() and time.monotonic() < until:
        time.sleep(0.2)
    shutil.rmtree(bucket)
    bucket.write_text("no folder any more")
    _, err = job.communicate()
    assert job.returncode == 1, err
    kept = list(tmp_path.rglob("events.sqlite"))
    assert kept, err
    assert Reader(kept[0].parent).findings()
