"""Each planted fault of the four checks gives a verified reproducer, of a few operators and lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import torchsan
from tests.planted.faults import FAULTS, planted
from tests.planted.operators import operator
from tests.planted.test_metadata import EXPECTED, sample
from tests.repro.commands import command, verified

pytestmark = pytest.mark.slow

OTHERS = """out-of-bounds-write uninitialized-read leaked-buffer clobbered-buffer early-free unexpected-allocation
    joint_pre joint_post post_grad_pre post_grad_post pre_grad dropped_mutation output_is_an_input
    decomposition backward_decomposition""".split()


def reproduce(folder: Path, module: str, fault: str | None = None) -> None:
    done = command(folder, "repro", "run", "--out", "out", "--load", module, fault=fault)
    text = verified(done, folder / "out")
    size = re.search(r"(\d+) operator calls?, (\d+) lines", done.stdout)
    assert size is not None, done.stdout
    print(f"{folder.name}: {size[0]}")
    # The goal is a median of 5 operators and 40 lines.
    assert (int(size[1]) <= 8, int(size[2]) <= 60) == (True, True), text


@pytest.mark.parametrize("name", [f.name for f in FAULTS if f.severity == "error"])
def test_of_values(name: str, tmp_path: Path) -> None:
    fault = next(f for f in FAULTS if f.name == name)
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torchsan.session(check="values", out=tmp_path / "run"), planted(fault):
        fault.program()
    reproduce(tmp_path, "tests.repro.planting", name)


@pytest.mark.parametrize("fault", OTHERS)
def test_of_memory_and_stages(fault: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import tests.repro.planting_others as planting\nplanting.program()\n")
    check = "memory" if "-" in fault else "stages"
    command(tmp_path, "run", "--quiet", "--check", check, "--out", "run", "program.py", fault=fault)
    reproduce(tmp_path, "tests.repro.planting_others", fault)


@pytest.mark.parametrize("name", EXPECTED)
def test_of_metadata(name: str, tmp_path: Path) -> None:
    with torchsan.session(check="metadata", out=tmp_path / "run"):
        operator(name)(sample() if name != "wrong_nan_mutation" else torch.full((3, 4), float("nan")))
    reproduce(tmp_path, "tests.planted.operators")
