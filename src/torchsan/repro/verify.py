"""Runs what was written once more: in a fresh process, in another folder; under torchsan, by itself, and eagerly."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsan.checks import REGISTRY, Reproduction
from torchsan.errors import RecordingError
from torchsan.recording import Reader, finalize
from torchsan.records import Finding
from torchsan.repro.exhibits import Loads
from torchsan.repro.oracle import find_same
from torchsan.repro.script_assertions import shows_by_itself
from torchsan.repro.trial_server import TrialServer, trial_environment

_OUR_FRAMES = re.compile(r'^  File "<(?:string|frozen runpy)>".*\n(?:    .*\n)*', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of it; None where it does not apply.

    `same`: the finding that torchsan made in a fresh process, if it is the same. `alone`: the script fails without
    torchsan. `eager`: it passes when nothing is compiled. `output` is what it printed by itself.
    """

    same: Finding | None = None
    alone: bool | None = None
    eager: bool | None = None
    output: str = ""

    def __bool__(self) -> bool:
        """Whether the reproducer is verified."""
        return self.same is not None and self.alone is not False and self.eager is not False


def verify(
    folder: Path, finding: Finding, checks: tuple[str, ...], loads: Loads, zygote: TrialServer, limit: float
) -> Verdict:
    """Run the script of `folder` in copies of it. The recording of the run under torchsan becomes part of `folder`.

    It has to fail in a process that never imported torchsan, or in one that is started anew, if torchsan alone sees it.
    """
    with tempfile.TemporaryDirectory(prefix="torchsan-verify-", ignore_cleanup_errors=True) as text:
        here = Path(text)
        for name in ("same", "alone", "eager"):
            shutil.copytree(folder, here / name, ignore=shutil.ignore_patterns("state.json", "recording"))
        with ThreadPoolExecutor(3) as pool:
            alone = pool.submit(_fails_alone, here / "alone", zygote, limit) if shows_by_itself(finding) else None
            ask = zygote.ask if alone is not None else _anew
            same = pool.submit(_under_torchsan, here / "same", finding, checks, loads, ask, limit)
            compiled = REGISTRY[finding.check].reproduction is Reproduction.COMPILED
            eager = pool.submit(_passes_eagerly, here / "eager", zygote, limit) if compiled else None
        recording = here / "same" / "recording"
        if recording.is_dir():
            shutil.rmtree(folder / "recording", ignore_errors=True)
            shutil.copytree(recording, folder / "recording")
        fails, output = alone.result() if alone is not None else (None, "")
        return Verdict(
            same=same.result(),
            alone=fails,
            eager=None if eager is None else eager.result(),
            output=output,
        )


def _under_torchsan(
    folder: Path,
    finding: Finding,
    checks: tuple[str, ...],
    loads: Loads,
    ask: Callable[[dict[str, Any]], object],
    limit: float,
) -> Finding | None:
    request = {"work": "trial", "folder": str(folder), "words": ["repro.py"], "check": list(checks)}
    ask(request | {"loads": list(loads.modules), "timeout": limit})
    with suppress(RecordingError):
        finalize(folder / "recording", None)
        return find_same(finding, Reader(folder / "recording").findings())
    return None


def _anew(request: dict[str, Any]) -> None:
    words = ["-c", "from torchsan.repro._trial_process import once; once()", json.dumps(request)]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, *words],
            cwd=request["folder"],
            env=trial_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=request["timeout"],
            check=False,
        )


def _fails_alone(folder: Path, zygote: TrialServer, limit: float) -> tuple[bool, str]:
    """Whether it fails, and what it prints then."""
    request = {"work": "alone", "folder": str(folder), "words": ["repro.py"], "loads": [], "timeout": limit}
    answer = zygote.ask(request)
    output = folder / "output.txt"
    text = output.read_text(errors="replace") if output.exists() else ""
    text = _OUR_FRAMES.sub("", text).replace(f"{folder}{os.sep}", "")
    return answer["status"] != 0 and not answer["timeout"], text


def _passes_eagerly(folder: Path, zygote: TrialServer, limit: float) -> bool:
    words = ["repro.py", "eager"]
    answer = zygote.ask({"work": "script", "folder": str(folder), "words": words, "loads": [], "timeout": limit})
    return answer["status"] == 0 and not answer["timeout"]
