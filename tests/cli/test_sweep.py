"""`torchsan sweep`, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchsan.cli.main import main
from torchsan.cli.sweep import parse_time
from torchsan.errors import UsageError
from torchsan.sweep.results import Results

_WRONG = """
import torch
torch.compile(lambda x: torch.relu(x) + 1, options={"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"})(torch.randn(8, 9))
"""
_CLEAN = "import torch\ntorch.compile(lambda x: torch.relu(x) + 1)(torch.randn(8, 9))\n"
_DIES = "import os\nos.kill(os.getpid(), 4)\n"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name, text in (("wrong", _WRONG), ("clean", _CLEAN), ("dies", _DIES)):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "list.txt").write_text("wrong.py\nclean.py\n")
    return tmp_path


def sweep(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchsan", "sweep", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


def load(file: Path) -> Any:
    return json.loads(file.read_text())


def test_a_sweep_finds_resumes_and_gates(programs: Path) -> None:
    words = ("--check", "values", "--no-repro", "--json")
    first = sweep(programs, "list.txt", "--out", "out", "--report", "page.html", *words, "first.json")
    assert first.returncode == 1, first.stderr
    report = load(programs / "first.json")
    assert {p["name"]: p["outcome"] for p in report["programs"]} == {"wrong.py": "findings", "clean.py": "clean"}
    (find,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert (find["kind"], find["state"], find["programs"]) == ("wrong-values", "new", ["wrong.py"])
    assert find["reason"] == "seen again in a process of its own"
    assert (programs / "out" / "finds" / find["fingerprint"] / "issue.md").read_text().startswith("# ")
    assert "wrong-values" in (programs / "page.html").read_text()
    gated = sweep(programs, "--resume", "--out", "out", "--baseline", "first.json", *words, "-")
    assert gated.returncode == 0, gated.stderr
    again = json.loads(gated.stdout)
    assert (again["reused"], again["status"], again["findings"][0]["state"]) == (2, "clean", "baseline")
    assert sweep(programs, "list.txt", "--out", "out").returncode == 2


@pytest.mark.slow
def test_a_new_find_gets_a_reproducer(programs: Path) -> None:
    done = sweep(programs, "wrong.py", "--check", "values", "--repro-limit", "120", "--out", "out", "--json", "j.json")
    assert done.returncode == 1
    (find,) = [f for f in load(programs / "j.json")["findings"] if f["severity"] == "error"]
    script = programs / find["reproducer"]
    assert script.name == "repro.py"
    assert subprocess.run([sys.executable, script], capture_output=True, check=False).returncode == 1


@pytest.mark.slow
def test_ctrl_c_keeps_all(programs: Path) -> None:
    (programs / "hangs.py").write_text("while True: pass\n")
    (programs / "list.txt").write_text("clean.py\nhangs.py\n")
    command = [sys.executable, "-m", "torchsan", "sweep", "list.txt", "--jobs", "1", "--out", "out"]
    with subprocess.Popen(command, cwd=programs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as done:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not _kept(programs / "out"):
            time.sleep(0.5)
        done.send_signal(signal.SIGINT)
        text = done.communicate(timeout=60)[0]
    assert done.returncode == 130
    assert "1 not run" in text
    assert _kept(programs / "out") == ["clean.py"]


def _kept(folder: Path) -> list[str]:
    if not (folder / "results.sqlite").exists():
        return []
    with Results(folder) as results:
        return [r.program.name for r in results]


@pytest.mark.parametrize(
    "words",
    [
        ["sweep"],
        ["sweep", "no-such-file"],
        ["sweep", "--resume"],
        ["sweep", "x.py", "glob*"],
        ["sweep", "x.py", "--jobs", "0"],
        ["sweep", "x.py", "--time", "soon"],
        ["sweep", "x.py", "--check", "nothing"],
        ["sweep", "x.py", "--baseline", "missing.json"],
        ["sweep", "x.py", "--report", "page.pdf"],
        ["sweep", "x.py", "--load", "no_such_module_anywhere"],
        ["sweep", "ops", "--way", "sideways"],
    ],
)
def test_wrong_usage_is_said_before_anything_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    assert main(words) == 2
    assert "torchsan: error:" in capsys.readouterr().err
    assert os.listdir(tmp_path) in (["x.py"], ["x.py", "torchsan-sweeps"], ["torchsan-sweeps", "x.py"])


def test_a_time_has_a_unit() -> None:
    assert [parse_time(t) for t in (None, "90", "90s", "1.5m", "1h")] == [None, 90.0, 90.0, 90.0, 3600.0]
    with pytest.raises(UsageError):
        parse_time("0")


def test_to_resume_is_to_sweep_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def programs(args: Any, loads: object) -> Any:
        asked.append((args.target, args.globs, args.dtype, args.way, args.samples, args.seed))
        raise UsageError("enough is known", slug="usage")

    monkeypatch.setattr("torchsan.cli.sweep._programs", programs)
    monkeypatch.chdir(tmp_path)
    main(["sweep", "ops", "amin", "amax", "--dtype", "uint8", "--samples", "2", "--out", "here"])
    main(["sweep", "--resume", "--out", "here"])
    main(["sweep", "here"])
    assert asked == [("ops", ["amin", "amax"], "uint8", None, 2, 0)] * 3
