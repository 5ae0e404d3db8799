from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import torchsan

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder of its own, with the torchsan that is tested on the path of its subprocesses."""
    source = str(Path(torchsan.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delenv("TORCHSAN_OPTIONS", raising=False)
    monkeypatch.chdir(tmp_path)


def command(*words: str, flags: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *flags, "-m", "torchsan", *words]


@pytest.fixture
def cli() -> Run:
    """Run `torchsan WORDS…` to its end."""

    def run(*words: str, flags: Sequence[str] = (), **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(*words, flags=flags), capture_output=True, text=True, timeout=120, **kwargs)

    return run
