from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torchsan.recording import Program, Reader, finalize

ROOT = Path(__file__).parents[2]

# What a daemon does, in the middle of a recording and after it: close what it did not open, and open its own files.
_CLOSES = """
import os, sys
from contextlib import closing, suppress
from pathlib import Path
sys.path.insert(0, os.getcwd())
from torchsan.recording import Reader, Writer, finalize
from tests.samples import finding, graph

def take_the_numbers(turn):
    os.closerange(3, 256)
    for n in range(30):
        number = os.open(f"{sys.argv[1]}/mine-{turn}-{n}", os.O_RDWR | os.O_CREAT)
        os.write(number, b"mine" * 5000)

folder = Path(sys.argv[1], "run")
writer = Writer.create(folder, command=[])
writer.finding(finding())
for turn in range(3):
    take_the_numbers(turn)
    writer.graph(graph())
    for _ in range(200):
        writer.finding(finding(evidence={"text": "x" * 10_000}))
    if sys.argv[2] == "read":
        assert len(Reader(folder).findings()) == 200 * (turn + 1) + 1
take_the_numbers("last")
match sys.argv[2]:
    case "close":
        writer.close()
        finalize(folder, None)
        again = Writer.create(Path(sys.argv[1], "again"), command=[])  # It could get the inode of the lost log.
        again.finding(finding())
        again.close()
    case "kill":
        writer.skipped("a", "b")
        os.kill(os.getpid(), 9)
assert writer.degraded is None
"""


@pytest.mark.parametrize("then", ["close", "kill", "exit", "read"])
def test_a_program_that_closes_our_descriptors_keeps_its_files_and_its_recording(tmp_path: Path, then: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CLOSES, str(tmp_path), then], cwd=ROOT, capture_output=True)
    assert done.returncode == (-signal.SIGKILL if then == "kill" else 0), done.stderr.decode()
    mine = list(tmp_path.glob("mine-*"))
    assert len(mine) == 120
    for file in mine:
        assert file.read_bytes() == b"mine" * 5000, file
    finalize(tmp_path / "run", Program(exit=0))
    reader = Reader(tmp_path / "run")
    assert len(reader.findings()) == 601
    assert reader.closed == (then == "close")
    assert len(reader.coverage().skipped) == (then == "kill")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "artifacts",
        "events.sqlite",
        "manifest.json",
        "tensors",
    ]


def test_a_log_whose_descriptors_were_lost_and_that_cannot_be_copied_is_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = """
import os, shutil, sys
from contextlib import closing, suppress
from pathlib import Path
sys.path.insert(0, os.getcwd())
from torchsan.recording import Writer, finalize
from tests.samples import finding
writer = Writer.create(Path(sys.argv[1], "run"), command=[])
os.closerange(3, 256)
files = [os.open(f"{sys.argv[1]}/mine-{n}", os.O_RDWR | os.O_CREAT) for n in range(30)]
shutil.rmtree(writer.path)
writer.finding(finding())
writer.finding(finding())
writer.close()
finalize(writer.path, None)
assert len(writer.findings) == 2
assert writer.degraded
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)
    assert capfd.readouterr().err.count("recording is incomplete") == 1
    assert {file.read_bytes() for file in tmp_path.glob("mine-*")} == {b""}
