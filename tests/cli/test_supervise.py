"""Looking at a recording while another process writes it."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import command
from torchsan.cli import supervise
from torchsan.cli.supervise import Progress
from torchsan.recording import Writer
from torchsan.recording.log import connect
from torchsan.report.live import Shown


def test_it_tells_of_graphs_when_there_are_more(tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = Progress(tmp_path, stream, lambda _finding: None, every=0)
    progress.show()  # There is no log yet.
    log = connect(tmp_path)
    for kind in ("graph", "skipped", "graph"):
        with log:
            log.execute("INSERT INTO events (kind, body) VALUES (?, ?)", (kind, '{"kernels": [1, 2, 3]}'))
        progress.show()
    progress.close()
    log.close()
    assert stream.getvalue().splitlines() == [
        "torchsan: compiled 1 graph, 3 kernels so far",
        "torchsan: compiled 2 graphs, 6 kernels so far",
    ]


@pytest.mark.parametrize("quiet", [False, True])
def test_it_says_that_checking_takes_long_unless_quiet(tmp_path: Path, quiet: bool) -> None:
    stream = io.StringIO()
    writer = Writer.create(tmp_path / "run", command=["script.py"])
    shown = Shown(writer.path, stream)
    progress = Progress(writer.path, stream, shown.show, None, None if quiet else shown.foretell)
    seen = {"done": 5, "launches": 100, "seconds": 5.0, "plain": 0.01, "left": 95.0}
    writer.event("forecast", {"graph": 0, "direction": "forward", "call": 0} | seen)
    for _ in range(2):
        progress.show()
    progress.close()
    writer.close()
    said = stream.getvalue().splitlines()
    assert [line.partition(" more: ")[0] for line in said] == (
        [] if quiet else ["torchsan: checking this call of graph 0 forward takes about 95.0 s"]
    )


_COUNTS = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, _: print("got", number, flush=True))
print("ready", flush=True)
time.sleep(2.5)
sys.exit(7)
"""


@pytest.mark.parametrize("to_all", [True, False])
def test_a_signal_reaches_the_program_once(to_all: bool) -> None:
    Path("counts.py").write_text(_COUNTS)
    program = subprocess.Popen(
        command("run", "--quiet", "counts.py"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        (os.killpg if to_all else os.kill)(program.pid, number)
    out, _ = program.communicate(timeout=60)
    assert sorted(out.splitlines()) == ["got 10", "got 15", "got 2"]
    assert program.returncode == 7


def test_what_another_handler_has_read_already_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "select", lambda read, *_: (read, [], []))
    with supervise._witness([]) as sent_to_all:
        assert not sent_to_all(signal.SIGINT)
