"""Machines that advertise what they cannot do are recognised before a worker dies of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest

from tests import machine
from tests.store.s3 import s3_server


def test_amx_is_looked_up_in_what_the_processor_says(tmp_path: Path) -> None:
    (tmp_path / "with").write_text("flags : fpu avx512_bf16 amx_bf16 amx_tile\n")
    (tmp_path / "without").write_text("flags : fpu avx512_bf16\n")
    assert machine.advertises_amx(tmp_path / "with")
    assert not machine.advertises_amx(tmp_path / "without")
    assert not machine.advertises_amx(tmp_path / "absent")


def test_the_remedy_is_set_for_the_tests_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(machine, "advertises_amx", lambda: True)
    monkeypatch.setattr(machine, "matmul_dies", lambda: True)
    line = machine.prepare()
    assert line is not None
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in line
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert machine.prepare() is None, "what the user has set stays"


def test_a_server_dies_with_the_tests_that_started_it() -> None:
    code = (
        "import sys, time\nfrom tests.store.s3 import s3_server\n"
        "with s3_server() as endpoint:\n    print(endpoint, flush=True)\n    time.sleep(60)\n"
    )
    root = Path(__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline().startswith("http://")
        [server] = psutil.Process(tests.pid).children(recursive=True)
        os.kill(tests.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_a_server_ends_with_its_context() -> None:
    before = set(psutil.Process().children())
    with s3_server():
        [server] = set(psutil.Process().children()) - before
    assert not server.is_running()
