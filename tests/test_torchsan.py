"""The public names: all of them listed, typed, and shown in use in their docstrings."""

from __future__ import annotations

import doctest
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet

import torchsan
import torchsan.recording

ROOT = Path(__file__).parents[1]
_SLOW = {"aot_compile"}
"""Examples that build with a C++ compiler for a long time."""

USER_PROGRAM = """
import torch
import torchsan

def train(x: torch.Tensor) -> torch.Tensor:
    return torchsan.probe(torchsan.realize(x).relu(), "after-relu")

version: str = torchsan.__version__
try:
    with torchsan.session(check=("values", "memory"), watch="print", out="run") as run:
        train(torch.ones(2))
    for finding in run.findings:
        print(finding.kind.value, finding.message.upper())
    run.raise_if_findings()
except torchsan.SessionError as e:
    print(e.slug.upper())
except (torchsan.UnsupportedTorchError, torchsan.FindingsError, torchsan.RecordingError, torchsan.InternalError):
    pass
except torchsan.UsageError as e:
    raise torchsan.TorchsanError(str(e), slug=e.slug) from e
with torchsan.crossref(fail_fast=True) as reference:
    train(torch.ones(2))
reference.raise_if_findings()
count: int = reference.coverage.ops_checked
overloads: tuple[str, ...] = torchsan.crossref().loaded_overloads()
try:
    store = torchsan.Store("tensors")
    stored: torch.Tensor = store.get("x", device="cpu")
except torchsan.StoreError:
    pass
with torchsan.loading_from(store, missing="random"):
    pass
good: bool = bool(torchsan.check_call(train, torch.ones(2)))
right: torchsan.KernelReport = torchsan.check_kernel(torch.relu, torch.relu, (torch.ones(2),))
equal: bool = bool(torchsan.compare(torch.ones(2), torch.ones(2)))
hashed: str = torchsan.digest(torch.ones(2))
shape: tuple[int | None, ...] = torchsan.describe(torch.ones(2)).shape
nan: int = torchsan.summarize(torch.ones(2)).nan
with torchsan.memory_steps("log") as steps:
    torchsan.memory_step({"a": torch.ones(2)}, freed=["b"], last=True)
problems: list[str] = steps.problems
graph: torch.fx.GraphModule = torchsan.insert_memory_steps(torch.fx.symbolic_trace(train), torch.ones(2))
package: str = torchsan.aot_compile(torch.export.export(graph, (torch.ones(2),)), "model.pt2", watch="save")
warning: type[UserWarning] = torchsan.TorchsanWarning
"""


def test_every_public_name_is_listed() -> None:
    assert set(torchsan.__all__) <= set(dir(torchsan))
    assert set(torchsan._LAZY) <= set(torchsan.__all__)
    for name in torchsan.__all__:
        assert getattr(torchsan, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = torchsan.nonsense  # type: ignore[attr-defined]  # wrong on purpose


def mypy(program: Path) -> subprocess.CompletedProcess[str]:
    """What mypy says of a user's program. With the project's configuration, so that its cache of torch is used."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(program)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_mypy_sees_every_public_name_in_a_users_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    assert [name for name in torchsan.__all__ if f"torchsan.{name}" not in USER_PROGRAM] == []
    program.write_text(USER_PROGRAM)
    done = mypy(program)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = {
        "torchsan.sesion()": "attr-defined",
        "torchsan.crossref(calls='all')": "arg-type",
        "torchsan.memory_step(1)": "arg-type",
        "torchsan.realize(1)": "arg-type",
    }
    program.write_text("import torchsan\n" + "\n".join(wrong))
    said = mypy(program).stdout.splitlines()
    assert [line.rpartition("[")[2].rstrip("]") for line in said if ": error:" in line] == list(wrong.values()), said


def examples() -> list[ParameterSet]:
    names = [name for name in torchsan.__all__ if name != "__version__"]
    return [pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else []) for name in names]


@pytest.fixture(scope="module")
def surroundings() -> dict[str, Any]:
    """What the examples are written for: the modules, and a compiled function with its argument."""
    x = torch.ones(8)
    return {"torch": torch, "torchsan": torchsan, "warnings": warnings, "compiled": torch.compile(torch.relu), "x": x}


@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # torch warns of itself when it builds a package
@pytest.mark.parametrize("name", examples())
def test_a_public_name_shows_its_use(
    name: str, surroundings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = getattr(torchsan, name).__doc__
    found = doctest.DocTestParser().get_doctest(text, dict(surroundings), name, None, None)
    assert found.examples, f"the docstring of torchsan.{name} has no example"
    said: list[str] = []
    with warnings.catch_warnings():
        assert doctest.DocTestRunner(verbose=False).run(found, out=said.append).failed == 0, "".join(said)
