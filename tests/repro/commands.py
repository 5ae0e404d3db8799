"""Runs `torchsan` and the scripts that it makes, each as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torchsan
from torchsan.recording import Reader

ROOT = Path(__file__).parents[2]


def environment(fault: str | None = None) -> dict[str, str]:
    """What a process needs to find torchsan and the planted faults."""
    paths = [str(Path(torchsan.__file__).parents[1]), str(ROOT)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TORCHSAN_OPTIONS": ""}
    environ.pop("CI", None)  # With it PyTorch refuses operators that hide an alias, and there is nothing to find.
    return environ | ({"TORCHSAN_TEST_FAULT": fault} if fault else {})


def command(folder: Path, *words: str, fault: str | None = None) -> subprocess.CompletedProcess[str]:
    """`torchsan WORDS` in a folder, with a fault planted."""
    line = [sys.executable, "-m", "torchsan", *words]
    return subprocess.run(line, cwd=folder, env=environment(fault), capture_output=True, text=True, timeout=900)


def plain(folder: Path, *words: str, fault: str | None = None) -> int:
    """`python repro.py WORDS` in a folder: its exit status."""
    line = [sys.executable, "repro.py", *words]
    return subprocess.run(line, cwd=folder, env=environment(fault), capture_output=True, timeout=300).returncode


def with_torch_alone(folder: Path, fault: str | None = None) -> int:
    """`python repro.py` where nothing is installed but torch and what torch needs: its exit status."""
    absent = "torchsan numpy safetensors blake3 xxhash rich transformers s3fs".split()
    planting = "import tests.repro.planting; " if fault else ""
    code = (
        f"import sys; {planting}sys.modules.update(dict.fromkeys({absent})); import runpy; runpy.run_path('repro.py')"
    )
    line = [sys.executable, "-c", code]
    return subprocess.run(line, cwd=folder, env=environment(fault), capture_output=True, timeout=300).returncode


def verified(done: subprocess.CompletedProcess[str], out: Path) -> str:
    """The script, of which everything that is said of a verified reproducer is true."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified" in done.stdout
    assert "**Verified**" in (out / "README.md").read_text()
    assert [f for f in Reader(out / "recording").findings() if f.severity == "error"]
    assert not (out / "state.json").exists()
    text = (out / "repro.py").read_text()
    assert "torchsan" not in text
    return text
