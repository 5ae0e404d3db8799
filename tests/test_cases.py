"""Real programs that PyTorch 2.13 compiles wrongly, through the command line with every check on: what is expected of
each is found, and those that only look wrong are clean; so are those that the PyTorch here has fixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.machine import CACHE, is_fixed

CASES = Path(__file__).parent / "cases"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text())
EVERY_DAY = {"heap_overflow.py", "batchnorm_mean.py", "uint8_amin.py", "overlapping_shift.py"}


def run(script: Path, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "torchsan", "run", "--out", str(folder / "run"), "--json", str(folder / "r.json")]
    environment = os.environ | {CACHE: "1"}  # As a user has it: one of the cases is about it.
    subprocess.run([*command, str(script)], cwd=folder, check=False, capture_output=True, timeout=300, env=environment)
    report: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return report


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in EXPECTED]
)
def test_a_case_is_reported_as_expected(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    report = run(CASES / name, tmp_path)
    for finding in report["findings"]:
        named = finding["nodes"] and finding["ops"] and finding["source"]
        assert named or finding["check"] not in ("values", "stages") or finding["evidence"]["unnamed"], finding
    if not expected["kind"] or ("fixed_in" in expected and is_fixed(expected["fixed_in"])):
        assert report["status"] == "clean"
        assert not [f for f in report["findings"] if f["severity"] == "error"]
        return
    assert report["status"] == "findings"
    assert [
        f
        for f in report["findings"]
        if f["kind"] in expected["kind"]
        and f["stage"] in expected["stage"]
        and (not expected["ops"] or set(f["ops"]) & set(expected["ops"]))
    ], report["findings"]


def test_bytes_whose_smallest_is_not_what_amin_says(tmp_path: Path) -> None:
    # The bug of uint8_amin.py with data that show it whatever it gives, 0 or 1.
    script = tmp_path / "bytes.py"
    script.write_text(
        "import torch\nx = torch.full((4, 40), 7, dtype=torch.uint8)\ntorch.compile(lambda x: torch.amin(x, -1))(x)\n"
    )
    (finding,) = [f for f in run(script, tmp_path)["findings"] if f["check"] == "values"]
    assert (finding["kind"], finding["stage"], finding["ops"]) == ("wrong-values", "kernel", ["aten.amin.default"])
    assert finding["source"][0]["line"] == 3
