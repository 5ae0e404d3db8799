"""Healthy programs as Triton kernels: no error under all four checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import torchsan
from torchsan.records import Severity

pytest.importorskip("triton")
from tests import triton_on_cpu
from tests.planted.plant import planted
from tests.programs.triton_programs import HEALTHY, Healthy


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    with triton_on_cpu.enabled():
        yield


@pytest.mark.parametrize("program", [pytest.param(h, id=h.name) for h in HEALTHY])
def test_a_healthy_program_has_no_error(program: Healthy) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    sources: list[str] = []

    def seen(source: str) -> str:
        sources.append(source)
        return source

    with torchsan.session() as run, triton_on_cpu.templates() if program.templates else nullcontext(), planted(seen):
        program.run()
    assert [f for f in run.findings if f.severity is Severity.ERROR] == []
    assert run.coverage.buffers_checked == run.coverage.buffers > 0
    assert not [s for s in run.coverage.skipped if "failed" in s.reason]
    assert any(("triton_tem_" if program.templates else "async_compile.triton(") in source for source in sources)
    assert "cpp_pybinding" not in str(sources)


_SCRIPT = """
import torch
from tests import triton_on_cpu
from tests.programs import users_kernels

with triton_on_cpu.enabled():
    print(torch.compile(users_kernels.{program})(torch.linspace(-1, 1, 432).reshape(9, 48)).sum())
"""


@pytest.mark.parametrize(("program", "status"), [("autotuned", 0), ("out_of_bounds", 1)])
def test_a_default_run_of_a_users_kernel_is_clean_if_it_is_healthy(program: str, status: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(program=program))
    command = [sys.executable, "-m", "torchsan", "run", "--out", str(tmp_path / "run"), str(script)]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # Another Triton may come first: `make test-triton`.
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == status, found.stdout + found.stderr
