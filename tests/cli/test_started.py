"""torchsan and its program, started by a process that closed their streams or does not care for its children."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import command

_LOOKS = """
import os, signal, sys
print("x", flush=True)
streams = sys.stdin, sys.stdout, sys.stderr
seen = [s is None for s in streams], open("own", "w").fileno(), signal.getsignal(signal.SIGCHLD).name
open("seen", "w").write(repr(seen))
if sys.argv[1:]: os.abort()
sys.exit(7)
"""


def shell(words: list[str], how: str) -> int:
    return subprocess.run(["/bin/sh", "-c", f"{shlex.join(words)} {how}"], capture_output=True).returncode


@pytest.mark.parametrize("how", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_are_closed_for_the_program(how: str) -> None:
    Path("looks.py").write_text(_LOOKS)
    assert shell([sys.executable, "looks.py"], how) == 7
    expected = Path("seen").read_text()
    assert shell(command("run", "--out", "run", "looks.py"), how) == 7
    assert Path("seen").read_text() == expected


def test_the_status_is_known_where_children_are_ignored() -> None:
    Path("looks.py").write_text(_LOOKS)

    def run(*words: str) -> int:
        ignore = partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
        words = ("run", "--json", "r.json", "looks.py", *words)
        return subprocess.run(command(*words), capture_output=True, preexec_fn=ignore).returncode

    assert run() == 7
    assert json.loads(Path("r.json").read_text())["program"] == {"exit": 7, "signal": None}
    assert "SIG_IGN" in Path("seen").read_text()
    assert run("abort") == 134
    assert json.loads(Path("r.json").read_text())["program"] == {"exit": None, "signal": 6}
