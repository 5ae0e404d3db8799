"""`torchsan check-kernel`: files, names, exit statuses and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchsan.cli.main import main

_FILE = """
import torch

def kernel(x):
    return torch.where(x > 0, x, 0.0)

def off(x):
    return torch.relu(x) * 1.01

def reference(x):
    return torch.relu(x)

inputs = (torch.ones(6, 7),)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(_FILE)
    return path


def test_a_right_kernel_is_clean(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-kernel", str(file), "--json", str(tmp_path / "out.json")]) == 0
    assert "kernel: clean" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["status"] == "clean"


def test_a_wrong_kernel_is_status_1_and_exported(file: Path, tmp_path: Path) -> None:
    out = [f"--{name}={tmp_path / name}" for name in ("json", "html", "sarif")]
    assert main(["check-kernel", f"{file}:off", *out]) == 1
    found = json.loads((tmp_path / "json").read_text())["findings"]
    assert [f["kind"] for f in found if f["severity"] == "error"] == ["wrong-values"]
    assert "wrong-values" in (tmp_path / "html").read_text()
    assert json.loads((tmp_path / "sarif").read_text())["runs"][0]["results"]


def test_reference_and_inputs_may_stand_elsewhere(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.py"
    other.write_text(
        "import torch\ndef right(x, y): return x + y\ndef some(seed): return torch.ones(3), torch.ones(3)\n"
    )
    mine = tmp_path / "mine.py"
    mine.write_text("def adding(x, y):\n    return y + x\n")
    words = ["check-kernel", f"{mine}:adding", "--reference", f"{other}:right", "--inputs", f"{other}:some"]
    assert main([*words, "--seeds", "4", "--time", "20"]) == 0


def test_what_cannot_be_used_is_status_2(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-kernel", str(tmp_path / "none.py")]) == 2
    assert main(["check-kernel", f"{file}:nothing"]) == 2
    broken = tmp_path / "broken.py"
    broken.write_text("def kernel(x): return x\nraise ImportError('no such thing')\n")
    assert main(["check-kernel", str(broken)]) == 2
    assert "no such thing" in capsys.readouterr().err


def test_a_kernel_whose_reference_is_random_is_status_4(tmp_path: Path) -> None:
    file = tmp_path / "random.py"
    file.write_text(
        "import torch\ndef kernel(x): return x * 2\ndef reference(x): return x + torch.rand_like(x)\n"
        "inputs = (torch.ones(3),)\n"
    )
    assert main(["check-kernel", str(file)]) == 4


def test_models_of_kernelbench_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self, n):\n        super().__init__()\n        self.linear = torch.nn.Linear(n, 3)\n"
        "    def forward(self, x):\n        return self.linear(x).relu()\n"
        "class ModelNew(Model):\n"
        "    def forward(self, x):\n        return torch.nn.functional.relu(self.linear(x))\n"
        "def get_inputs():\n    return [torch.randn(5, 4)]\n"
        "def get_init_inputs():\n    return [4]\n"
    )
    assert main(["check-kernel", str(file)]) == 0


def test_a_file_that_patches_pytorch_when_imported_cheats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "patching.py"
    file.write_text(
        "import torch\n"
        "def kernel(x): return torch.zeros_like(x)\n"
        "def reference(x): return torch.exp(x)\n"
        "torch.exp = lambda x: torch.zeros_like(x)\n"
        "inputs = (torch.ones(3),)\n"
    )
    assert main(["check-kernel", str(file)]) == 1
    assert "it replaces torch.exp" in capsys.readouterr().out


_LAUNCHED = """
import torch, triton
import triton.language as tl

@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)

def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)

def reference(x, y, n, block):
    y.copy_(2 * x)

inputs = (torch.randn(40), torch.zeros(40), 40, 16)
"""


def test_a_triton_kernel_is_launched_on_the_grid_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    file = tmp_path / "launched.py"
    file.write_text(_LAUNCHED)
    assert main(["check-kernel", f"{file}:twice", "--json", str(tmp_path / "out.json")]) == 0
    trials = json.loads((tmp_path / "out.json").read_text())["tried"]["trials"]
    assert len({t["inputs"].partition(";")[0] for t in trials}) > 9
    file.write_text(_LAUNCHED.replace("def grid(meta)", "def no_grid(meta)"))
    assert main(["check-kernel", f"{file}:twice"]) == 2
    assert "without a grid" in capsys.readouterr().err


def test_an_operator_that_its_file_defines_is_held_to_its_fake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "operator.py"
    file.write_text(
        "import torch\n"
        'lib = torch.library.Library("torchsan_cli", "DEF")\n'
        'lib.define("quantize(Tensor x) -> Tensor")\n'
        'lib.impl("quantize", lambda x: x.round().int(), "CPU")\n'
        "fake = lambda x: torch.empty_like(x, dtype=torch.int8)\n"
        'torch.library.register_fake("torchsan_cli::quantize", fake, lib=lib)\n'
        "kernel = torch.ops.torchsan_cli.quantize\n"
        "inputs = (torch.randn(6, 7),)\n"
    )
    assert main(["check-kernel", str(file)]) == 1
    assert "its result 0 is int32, its fake's int8" in capsys.readouterr().out


def test_what_a_file_does_when_it_is_imported_is_contained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, written = tmp_path / "writing.py", tmp_path / "written"
    file.write_text(f"import contextlib\nwith contextlib.suppress(OSError):\n    open({str(written)!r}, 'w')\n{_FILE}")
    assert main(["check-kernel", str(file)]) == 1
    assert f"it writes the file {written}" in capsys.readouterr().out and not written.exists()
