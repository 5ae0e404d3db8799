"""The table of seams: it holds for the PyTorch that is here, and says what a changed one lacks."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from torchsan.torch_internals.patches import missing, problem
from torchsan.torch_internals.seams import SEAMS, USERS, Seam


def seam(name: str, *parameters: str, module: str = "made_up_torch") -> Seam:
    return Seam(module=module, name=name, parameters=parameters or None, users=frozenset(["values"]), to="see")


class Graph:
    declared: int

    def __init__(self) -> None:
        self._prepare()

    def _prepare(self) -> None:
        self.scheduler = object()

    def compile(self, gm: Any, example_inputs: Any, *, cpp_wrapper: bool = False) -> Any:
        return gm


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a PyTorch that never was."""
    module: Any = ModuleType("made_up_torch")
    module.Graph = Graph
    module.flag = None
    monkeypatch.setitem(sys.modules, "made_up_torch", module)
    return module  # type: ignore[no-any-return]  # it is one


@pytest.mark.parametrize("module", sorted({seam.module for seam in SEAMS}))
def test_every_seam_is_in_the_pytorch_that_is_tested(module: str) -> None:
    importlib.import_module(module)
    assert [why for seam in SEAMS if seam.module == module and (why := problem(seam))] == []


def test_every_check_stands_in_the_table() -> None:
    assert {"values", "stages", "metadata", "memory", "watch"} <= set(USERS)
    assert all(seam.users <= set(USERS) and seam.to for seam in SEAMS)


@pytest.mark.parametrize(
    "there",
    [
        seam("flag"),
        seam("Graph.declared"),
        seam("Graph.scheduler"),
        seam("Graph.compile", "self", "gm", "example_inputs", "cpp_wrapper"),
        seam("Graph.compile", "self", "gm", "..."),
        seam("Graph.compile", "*", "cpp_wrapper"),
        seam("whatever", module="json.not_yet_imported_parent.child"),
    ],
)
def test_what_is_there_is_no_problem(changed: ModuleType, there: Seam) -> None:
    if there.module == "made_up_torch":
        assert problem(there) is None


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (seam("Graph.renamed"), "has no made_up_torch.Graph.renamed"),
        (seam("Lowering.name"), "has no made_up_torch.Lowering.name"),
        (seam("other"), "has no made_up_torch.other"),
        (seam("Graph.compile", "self", "gm"), "has made_up_torch.Graph.compile(self, gm, example_inputs, cpp_wrapper)"),
        (seam("Graph.compile", "self", "module", "..."), "not (self, module, ...)"),
        (seam("Graph.compile", "*", "aot"), "not (*, aot)"),
        (seam("x", module="json.gone"), "has no module json.gone"),
    ],
)
def test_what_is_gone_is_named(changed: ModuleType, gone: Seam, said: str) -> None:
    why = problem(gone)
    assert why is not None
    assert why.startswith("PyTorch 2.")
    assert said in why


def test_a_reason_says_what_the_check_needs_it_for(monkeypatch: pytest.MonkeyPatch) -> None:
    joint_graph = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    assert missing("stages") == []
    monkeypatch.delattr(joint_graph, "replace_random_passes")
    (reason,) = missing("stages")
    assert "has no torch._inductor.fx_passes.joint_graph.replace_random_passes, which it needs to tell" in reason
    assert missing("values") == []
