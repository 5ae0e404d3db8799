"""What newer releases of PyTorch have beside `torch.compile`: what torchsan sees of it, and leaves as it is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch.utils._debug_mode import DebugMode

from torchsan.torch_internals.inductor import changed_config, is_settable

PRECOMPILE = """
import sys
import torch

if sys.argv[1] == "capture":
    with torch.compiler.precompile.capture(lambda x: x.sin() + 1, artifact_path="m.py", cache_path="m.cache") as seen:
        seen(torch.ones(8))
else:
    torch.compiler.precompile.load("m.py", "m.cache")(torch.ones(8))
"""

AMIN = """
import torch

torch.compile(lambda x: torch.amin(x, -1))(torch.full((4, 40), 7, dtype=torch.uint8))
"""

LOGS = """
import sys
import torch
from torch.utils._debug_mode import DebugMode

torch.manual_seed(0)
model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
with DebugMode() as mode, DebugMode.log_tensor_hashes():
    torch.compile(model)(x)
    model(x).relu()
DebugMode.save_logs(mode.logs, sys.argv[1])
"""


def run(folder: Path, program: str, *words: str, under: bool = True, **variables: str) -> dict[str, Any]:
    """Run a program, under torchsan or by itself. Return the report, without one nothing."""
    (folder / "program.py").write_text(program)
    torchsan = ["-m", "torchsan", "run", "--json", "report.json"] if under else []
    command = [sys.executable, *torchsan, "program.py", *words]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert "Traceback" not in done.stderr, done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text()) if under else {}
    return report


@pytest.mark.skipif(importlib.util.find_spec("torch.compiler.precompile") is None, reason="since PyTorch 2.15")
def test_an_artifact_runs_unseen_and_the_run_is_not_clean(tmp_path: Path) -> None:
    for step in ("capture", "load"):
        assert run(tmp_path, PRECOMPILE, step)["status"] == "incomplete"


@pytest.mark.skipif(not hasattr(torch._inductor.config, "numerics"), reason="since PyTorch 2.14")
def test_the_numerics_that_a_program_chose_are_kept_for_its_reproducer() -> None:
    with torch._inductor.config.patch(numerics="strict"):
        config = changed_config()
    assert config["numerics"] == "strict"
    assert all(is_settable(name, value) for name, value in config.items())


@pytest.mark.skipif(not hasattr(DebugMode, "save_logs"), reason="since PyTorch 2.14")
def test_logs_of_debug_mode_are_the_same_under_torchsan(tmp_path: Path) -> None:
    run(tmp_path, LOGS, "by-itself.json", under=False)
    assert run(tmp_path, LOGS, "under.json")["status"] == "clean"
    by_itself, under = ((tmp_path / name).read_text() for name in ("by-itself.json", "under.json"))
    assert json.loads(under) == json.loads(by_itself)
    assert json.loads(under)["logs"]


def test_graphs_in_lite_mode_are_checked_as_any_others(tmp_path: Path) -> None:
    report = run(tmp_path, AMIN, TORCHINDUCTOR_LITE_MODE="1")
    assert report["coverage"]["buffers_checked"] == 1
