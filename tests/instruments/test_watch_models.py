"""Whole models under `--watch save`: nothing missed, nothing wrong, nothing changed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

import torchsan
import torchsan.checks
from tests.instruments.counting import count_kernels, generated_modules
from tests.models import MODELS, step
from torchsan.instruments.observer import CallWatch, CompiledProgram, Observer, Values
from torchsan.recording import Reader
from torchsan.records import Watched
from torchsan.report.values import watched_values
from torchsan.store import Store

FAST = ("mlp", "cnn")


class Collector(Observer):
    """Keeps the programs, and the inputs of the first call of each."""

    name = "collector"

    def __init__(self) -> None:
        self.programs: list[tuple[CompiledProgram, list[Any]]] = []

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        return _Inputs(self, program) if call == 0 else None


class _Inputs(CallWatch):
    def __init__(self, collector: Collector, program: CompiledProgram) -> None:
        self._collector, self._program = collector, program

    def enter(self, function: str, inputs: Values) -> None:
        copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in inputs.values()]
        self._collector.programs.append((self._program, copies))


@dataclass
class Run:
    plain: list[torch.Tensor] = field(default_factory=list)
    watched: list[torch.Tensor] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    programs: list[tuple[CompiledProgram, list[Any]]] = field(default_factory=list)
    values: list[Watched] = field(default_factory=list)
    recording: Path = Path()


@pytest.fixture(
    scope="module",
    params=[name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two steps, once without torchsan and once watched; the kernels of the second one are counted."""
    result = Run(recording=tmp_path_factory.mktemp("watched") / "run")
    torch.manual_seed(0)
    model, inputs = MODELS[request.param]()
    twin = copy.deepcopy(model)
    collector = Collector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchsan.checks, "observers", lambda options, writer: (collector,))
        with torchsan.session(watch="save", out=result.recording):
            known = len(generated_modules())
            compiled = torch.compile(model)
            result.watched = step(model, compiled, inputs)
            modules = generated_modules()[known:]
            namespaces = [dict(vars(m)) for m in modules]
            result.counted = count_kernels(modules)
            result.watched += step(model, compiled, inputs)
            for module, namespace in zip(modules, namespaces, strict=True):
                vars(module).update({k: v for k, v in namespace.items() if k != "call"})
    compiled = torch.compile(twin)
    result.plain = step(twin, compiled, inputs) + step(twin, compiled, inputs)
    result.programs = collector.programs
    result.values = watched_values(Reader(result.recording))
    yield result
    torch._dynamo.reset()


def test_outputs_and_gradients_are_bit_identical(run: Run) -> None:
    assert len(run.plain) == len(run.watched) > 2
    for plain, watched in zip(run.plain, run.watched, strict=True):
        assert torch.equal(plain, watched) or (plain.isnan() == watched.isnan()).all()


def test_every_launch_is_watched(run: Run) -> None:
    launches = {(w.graph, w.direction, w.launch, w.kernel) for w in run.values if w.call == 1 and w.launch is not None}
    watched = Counter(kernel for _, _, _, kernel in launches)
    assert watched == run.counted
    assert sum(watched.values()) == sum(len(p.record.kernels) for p, _ in run.programs)
    assert not Reader(run.recording).coverage().skipped


def test_every_tensor_is_what_its_node_computes(run: Run) -> None:
    store = Store(Reader(run.recording).tensors)
    compared = 0
    for program, inputs in run.programs:
        ref = program.ref
        nodes = run_graph(program.graphs["call"].module, inputs)
        for w in run.values:
            if (w.graph, w.direction, w.call) == (ref.id, ref.direction, 0) and w.node is not None:
                assert w.stored is not None
                assert_close(store.get(w.stored), nodes[w.node], w)
                compared += 1
    written = sum(w.call == 0 and w.phase == "after" and w.launch is not None for w in run.values)
    # The rest are inner stages of reductions, and buffers that a later kernel completes.
    assert compared >= 0.5 * written, (compared, written)


def run_graph(module: torch.fx.GraphModule, inputs: list[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}

    class Keeper(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            values[n.name] = value.clone() if isinstance(value, torch.Tensor) else value
            return value

    with torch.no_grad():
        Keeper(module).run(*inputs)
    return values


def assert_close(actual: torch.Tensor, expected: torch.Tensor, where: Watched) -> None:
    assert actual.numel() == expected.numel(), where
    actual = actual.reshape(expected.shape)
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected), where
        return
    scale = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * max(scale, 1.0), msg=lambda m: f"{where}: {m}")


def test_graph_inputs_and_outputs_are_watched_too(run: Run) -> None:
    for program, inputs in run.programs:
        mine = [w for w in run.values if (w.graph, w.direction) == (program.record.id, program.record.direction)]
        first = [w for w in mine if w.call == 0]
        assert [w.name for w in first if w.kernel == "(inputs)"] == list(program.model.functions["call"].inputs)
        assert len(inputs) == len(program.model.functions["call"].inputs)
        assert any(w.kernel == "(outputs)" for w in first)


def test_nothing_is_watched_before_it_is_written(run: Run) -> None:
    for program, _ in run.programs:
        for function in program.model.functions.values():
            written = {*function.inputs}
            for launch in function.launches():
                handed_on = {n for n in launch.reads if n in launch.writes and n not in written}
                assert set(launch.reads) - written <= handed_on | _aliases(function)
                written |= set(launch.writes)


def _aliases(function: Any) -> set[str]:
    from torchsan.instruments.program.model import Alias

    return {s.name for s in function.walk() if isinstance(s, Alias)}
