"""A PyTorch that changed: the program runs as it would, and the run is incomplete, never clean."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchsan
from tests.machine import CACHE
from tests.planted.plant import planted
from torchsan.calls import crossref
from torchsan.recording import Reader
from torchsan.report.verdict import verdict

RENAME = """
import importlib.machinery
import sys
from pathlib import Path

OLD, NEW, PACKAGE = {rename!r}


class Renamed(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        source = Path(self.path).read_text().replace(OLD, NEW)
        return compile(source, self.path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(fullname, path, target=None):
        if fullname.startswith(PACKAGE):
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.has_location and OLD in Path(spec.origin).read_text():
                spec.loader = Renamed(fullname, spec.origin)
            return spec


sys.meta_path.insert(len(sys.meta_path) - 1, Finder)

import torch


@torch.compile
def f(x):
    return torch.relu(x) + 1


print(f(torch.tensor([-1.0, 2.0])).tolist())
"""


_ONE_MORE = "def replace_random_passes(gm: torch.fx.GraphModule, why: str | None = None)"


@pytest.mark.parametrize(
    ("rename", "check", "reasons"),
    [
        (
            ("mutation_real_name", "mutation_known_name", "torch._inductor."),
            "values",
            ["the values check", "has no torch._inductor.scheduler.Scheduler.mutation_real_name, which it needs to"],
        ),
        (
            ("_compile_to_module", "_compile_to_python", "torch._inductor."),
            "memory",
            ["the memory check", "has no torch._inductor.graph.GraphLowering._compile_to_module, which it needs to"],
        ),
        (
            ("passname", "name_of_pass", "torch.fx.passes."),
            "stages",
            ["the stages check", "GraphTransformObserver.passname, which it needs to tell which pass changed a graph"],
        ),
        pytest.param(
            ("def replace_random_passes(gm: torch.fx.GraphModule)", _ONE_MORE, "torch._inductor.fx_passes."),
            "stages",
            ["the stages check", "replace_random_passes(gm, why), not (gm)"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("all_py_loaded_overloads", "all_loaded_overloads", "torch._dispatch."),
            "metadata",
            ["the metadata check", "has no torch._dispatch.python.all_py_loaded_overloads"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_name_that_was_renamed_turns_off_the_check_that_needs_it(
    tmp_path: Path, rename: tuple[str, str, str], check: str, reasons: list[str]
) -> None:
    recording = run_changed(tmp_path, rename, check)
    skipped = [f"{s.what}: {s.reason}" for s in recording.coverage().skipped]
    assert any(all(part in line for part in reasons) for line in skipped), skipped


def run_changed(folder: Path, change: tuple[str, str, str], check: str) -> Reader:
    """Run a program with a PyTorch in which a text was replaced: it is incomplete, and runs as it would."""
    (folder / "program.py").write_text(RENAME.format(rename=change))
    words = [sys.executable, "-m", "torchsan", "run", "--check", check, "--out", "run", "program.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1]), "TORCHSAN_OPTIONS": ""}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.stdout == "[1.0, 3.0]\n"
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    recording = Reader(folder / "run")
    assert verdict(recording).status == "incomplete"
    return recording


@pytest.mark.slow
def test_a_pytorch_that_goes_another_way_with_the_same_names_is_not_clean(tmp_path: Path) -> None:
    """The function is there with its name and its parameters, and nothing calls it any more."""
    inlined = "return getattr(f := type(self)._compile_to_module, '__wrapped__', f)(self)"
    change = ("return self._compile_to_module()", inlined, "torch._inductor.")
    recording = run_changed(tmp_path, change, "values,memory")
    (reason,) = verdict(recording).reasons
    assert "nothing was compiled by Inductor" in reason


def test_a_statement_that_is_not_understood_makes_the_run_incomplete(tmp_path: Path) -> None:
    def edit(source: str) -> str:
        return source.replace("        buf0 = ", "        try: arg0_1.dim()\n        finally: pass\n        buf0 = ", 1)

    with torchsan.session(check="memory", out=tmp_path / "run"), planted(edit) as changed:
        torch.compile(lambda x: x.sin())(torch.ones(4))
    assert changed
    outcome = verdict(Reader(tmp_path / "run"))
    assert (outcome.status, outcome.exit) == ("incomplete", 4)
    (reason,) = outcome.reasons
    assert "statement not understood, not observed: try:" in reason


@pytest.mark.slow
def test_code_from_a_cache_whose_switch_is_elsewhere_is_compiled_anew_and_compared(tmp_path: Path) -> None:
    reads = ("local = should_use_local_autograd_cache()", "local = True", "torch._functorch.")
    (tmp_path / "program.py").write_text(RENAME.format(rename=reads))
    environment = os.environ | {
        "PYTHONPATH": str(Path(torchsan.__file__).parents[1]),
        "TORCHSAN_OPTIONS": "",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        CACHE: "1",
    }
    torchsans = ["-m", "torchsan", "run", "--json", "report.json"]
    for words, status in (([], 0), (torchsans, 0)):
        command = [sys.executable, *words, "program.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        assert (done.stdout, done.returncode) == ("[1.0, 3.0]\n", status), done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "clean"
    assert [e["same"] for e in Reader(next((tmp_path / "torchsan-runs").iterdir())).events("cached")] == [True]


def other_signature(original: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda module, reason=None: original(module)


def test_a_function_with_other_parameters_turns_off_the_check_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint_graph: Any = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    changed = other_signature(joint_graph.replace_random_passes)
    monkeypatch.setattr(joint_graph, "replace_random_passes", changed)
    with torchsan.session(check=("values", "stages"), out=tmp_path / "run") as run:
        torch.compile(lambda x: x.sin())(torch.ones(4))
    assert joint_graph.replace_random_passes is changed
    assert run.coverage.buffers_checked == 1
    outcome = verdict(Reader(tmp_path / "run"))
    assert (outcome.status, outcome.exit) == ("incomplete", 4)
    (reason,) = outcome.reasons
    assert reason.startswith("the stages check: PyTorch ")
    assert "joint_graph.replace_random_passes(module, reason), not (gm)" in reason


def test_crossref_says_that_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch import eager_transforms

    monkeypatch.delattr(eager_transforms, "_func_increment_nesting")
    with crossref() as run:
        torch.add(torch.ones(4), 1)
    (reason,) = [s.reason for s in run.coverage.skipped if s.what == "the metadata check"]
    assert "has no torch._functorch.eager_transforms._func_increment_nesting" in reason
    assert run.coverage.ops_checked == 0
