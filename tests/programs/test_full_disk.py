"""A disk without room for a recording: the program runs as without torchsan, and torchsan says what it could not do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import torchsan

# It records something, and prints what it had printed without torchsan.
_PROGRAM = """
import os, sys
print("out", sys.argv[1:])
print("err", file=sys.stderr)
writer = sys.modules["torchsan.session"].active() if "torchsan.session" in sys.modules else None
for n in range(50):
    if writer is not None:
        writer._recorder.skipped(f"thing {n}", "x" * 1000)
sys.exit(int(sys.argv[1]))
"""


@contextmanager
def small_disk(folder: Path, kilobytes: int, files: int = 10_000) -> Iterator[Path]:
    """A file system with room for so much in so many files; skip the test where none can be mounted."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,nr_inodes={files + 1}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def run_on(disk: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "torchsan", "run", *words]
    return subprocess.run(command, cwd=disk, env=environment, capture_output=True, text=True, timeout=120)


def check_size(tmp_path: Path, kilobytes: int, status: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    with small_disk(tmp_path / "disk", kilobytes) as disk:
        done = run_on(disk, str(program), str(status))
    assert done.stdout == f"out ['{status}']\n", (kilobytes, done)
    assert done.returncode == (status or 4), (kilobytes, done)
    assert "err\n" in done.stderr
    assert "Traceback" not in done.stderr, (kilobytes, done.stderr)
    assert "internal-error" not in done.stderr, (kilobytes, done.stderr)
    assert any(f"torchsan: {said}" in done.stderr for said in ("incomplete", "nothing is recorded")), done.stderr


@pytest.mark.parametrize(("kilobytes", "status"), [(4, 7), (8, 0), (16, 3), (36, 7), (60, 1), (76, 0), (128, 7)])
def test_a_full_disk_does_not_stop_the_program(tmp_path: Path, kilobytes: int, status: int) -> None:
    check_size(tmp_path, kilobytes, status)


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", range(4, 204, 4))
def test_no_size_of_a_disk_stops_the_program(tmp_path: Path, kilobytes: int) -> None:
    check_size(tmp_path, kilobytes, (0, 7)[kilobytes % 8 == 0])


def test_a_session_on_a_full_disk_goes_on_in_memory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for kilobytes in (4, 16, 48):
        with small_disk(tmp_path / f"disk-{kilobytes}", kilobytes) as disk:
            (disk / "filling").write_bytes(bytes(2048))
            with torchsan.session(check="memory", out=disk / "run") as run:
                pass
            assert run.findings == ()
        assert "recor" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kilobytes", "files"), [(4, 0), (4, 1), (16, 100), pytest.param(64, 5, marks=pytest.mark.slow)]
)
def test_ranks_on_a_full_disk_run(tmp_path: Path, kilobytes: int, files: int) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nprint('out', os.environ['RANK'])\nsys.exit(int(sys.argv[1]))\n")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-port", "0", str(program)]
    with small_disk(tmp_path / "disk", kilobytes, files) as disk:
        done = run_on(disk, *launcher, "0")
    assert done.stdout == "out 0\n", done
    assert done.returncode == 4, done
    assert "Traceback" not in done.stderr, done.stderr
    assert "torchsan: incomplete" in done.stderr, done.stderr


def test_a_report_that_finds_no_room_leaves_the_program_its_status(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    with small_disk(tmp_path / "disk", 16) as disk:
        (disk / "filling").write_bytes(bytes(16 * 1024))
        for status in (7, 0):
            out = str(tmp_path / f"run-{status}")
            done = run_on(disk, "--out", out, "--json", "report.json", str(program), str(status))
            assert done.returncode == (status or 4), done
            assert "cannot write --json report.json: No space left on device" in done.stderr
            assert Path(out, "manifest.json").exists()
