"""`torchsan ops`, and the metadata check of operators through `torchsan run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torchsan

_DTYPE = """
import torch

@torch.library.custom_op("cases::widen", mutates_args=())
def widen(x: torch.Tensor) -> torch.Tensor:
    return x.double()

@widen.register_fake
def _(x):
    return torch.empty_like(x)

x = torch.randn(4, 16)
print("compiled", torch.compile(lambda x: widen(x) + 1)(x)[0, :3].tolist())
"""
_ALIAS = """
import torch

lib = torch.library.Library("cases_alias", "DEF")
lib.define("same(Tensor x) -> Tensor")
lib.impl("same", lambda x: x.view(x.shape), "CPU")
torch.library.register_fake("cases_alias::same", lambda x: torch.empty_like(x), lib=lib)
copy = torch.ops.cases_alias.same(torch.randn(4, 16))
"""
_LIBRARY = """
import torch

@torch.library.custom_op("mylib::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by

@scale.register_fake
def _(x, by):
    return torch.empty_like(x)

@torch.library.custom_op("mylib::rows", mutates_args=())
def rows(x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, which)

@rows.register_fake
def _(x, which):
    return x.new_empty([x.shape[0], *x.shape[1:]])

torchsan_samples = {
    "mylib::scale": lambda: [(torch.ones(3, 4), 2.0), (torch.ones(4, 3).t(), 0.5)],
    "mylib::rows": lambda: [(torch.ones(3, 4), torch.tensor([0, 2]))],
}
"""


def torchsan_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "torchsan", *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("source", "kind", "operator", "stage"),
    [
        (_DTYPE, "metadata-mismatch", "cases.widen.default", "kernel"),
        (_ALIAS, "undeclared-alias", "cases_alias.same.default", "eager"),
    ],
)
def test_a_run_reports_the_operator(tmp_path: Path, source: str, kind: str, operator: str, stage: str) -> None:
    (tmp_path / "case.py").write_text(source)
    done = torchsan_command(tmp_path, "run", "--check", "metadata", "--json", "out.json", "case.py")
    report: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    errors = [f for f in report["findings"] if f["severity"] == "error"]
    assert [(f["kind"], f["ops"], f["stage"]) for f in errors] == [(kind, [operator], stage)], done.stderr
    assert report["coverage"]["ops_checked"]
    assert done.returncode == 1


_FAIL_FAST = """
import torch

lib = torch.library.Library("cases_fast", "DEF")
for name in ("first", "second"):
    lib.define(f"{name}(Tensor x) -> Tensor")
    lib.impl(name, lambda x: x.double(), "CPU")
    torch.library.register_fake(f"cases_fast::{name}", lambda x: torch.empty_like(x), lib=lib)
x = torch.ones(2, 3)
print("before")
torch.ops.cases_fast.first(x)
print("between")
torch.ops.cases_fast.second(x)
"""


def test_fail_fast_ends_a_run_at_the_first_error(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(_FAIL_FAST)
    done = torchsan_command(tmp_path, "run", "--check", "metadata", "--fail-fast", "--json", "out.json", "case.py")
    report: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert [f["ops"] for f in report["findings"]] == [["cases_fast.first.default"]], done.stderr
    assert done.stdout == "before\n"
    assert done.returncode == 1


def test_the_operators_of_a_module_are_checked_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "mylib.py").write_text(_LIBRARY)
    done = torchsan_command(tmp_path, "ops", "--no-compile", "mylib")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["operator", "samples", "eager", "functionalized", "decomposition", "kernel", "status"]
    scale = next(line for line in lines if line.startswith("mylib.scale.default"))
    rows = next(line for line in lines if line.startswith("mylib.rows.default"))
    assert scale.split() == ["mylib.scale.default", "2", "ok", "ok", "none", "unreferenced", "ok"]
    assert rows.split()[-1] == "error"
    assert "size of output is [2, 4], its fake kernel says [3, 4]" in done.stdout


_KERNELS = """
import torch

@torch.library.custom_op("mykernels::softplus", mutates_args=())
def softplus(x: torch.Tensor) -> torch.Tensor:
    return (1 + x.exp()).log()

@softplus.register_fake
def _(x):
    return torch.empty_like(x)

@torch.library.custom_op("mykernels::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[: len(y) // 2] = x[: len(y) // 2] / 2
    return y

@half.register_fake
def _(x):
    return torch.empty_like(x)

torchsan_samples = {f"mykernels::{name}": lambda: [(torch.randn(4, 16),)] for name in ("softplus", "half")}
"""


@pytest.mark.slow
def test_the_kernels_of_operators_are_refereed(tmp_path: Path) -> None:
    """One overflows where the operator that it is named after does not; one leaves memory unwritten."""
    (tmp_path / "mykernels.py").write_text(_KERNELS)
    done = torchsan_command(tmp_path, "ops", "--no-compile", "--json", "out.json", "mykernels")
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["operators"]
    kinds = {o["operator"]: {f["kind"] for f in o["findings"] if f["check"] == "kernels"} for o in found}
    assert "wrong-values" in kinds["mykernels.softplus.default"]
    assert "uninitialized-read" in kinds["mykernels.half.default"]


def test_a_module_without_operators_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = torchsan_command(tmp_path, "ops", "empty")
    assert done.returncode == 2
    assert "registers no operators" in done.stderr
