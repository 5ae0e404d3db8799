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
from tests.models import MODELS, step
from tests.watch.counting import count_kernels, generated_modules
from torchsan.cli.values import watched_values
from torchsan.recording import Reader
from torchsan.records import Watched
from torchsan.store import Store
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer, Values

FAST = ("mlp", "cnn")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


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
        self._collector.programs.append((self._program, [_copy(v) for v in inputs.values()]))


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
        patch.setattr(torchsan.checks, "observers", lambda *_: (collector,))
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
        mine = [w for w in run.values if (w.graph, w.direction, w.call) == (*place(program), 0) and w.summary]
        given = dict(zip(program.model.functions["call"].inputs, [_copy(i) for i in inputs], strict=True))
        nodes = run_graph(program.graphs["call"].module, inputs)  # It overwrites the inputs, as the program does.
        left = dict(zip(program.model.functions["call"].inputs, inputs, strict=True))
        results = next(n for n in program.graphs["call"].module.graph.nodes if n.op == "output").args[0]
        for w in mine:
            assert w.stored is not None
            if w.kernel == "(inputs)":
                expected = given[w.name]
            elif w.kernel == "(outputs)":
                expected = nodes[results[int(w.name.removeprefix("output"))].name]
            elif w.node is not None:
                expected = nodes[w.node]
            elif w.phase == "after" and w.name in left:
                expected = left[w.name]
            else:
                continue
            assert_close(store.get(w.stored), expected, w)
            compared += 1
        for w in mine:
            assert w.phase == "before" or w.node is not None or w.launch is None or has_no_node(program, w), w
    assert compared > 10


def test_what_a_kernel_reads_is_what_was_written_last(run: Run) -> None:
    seen: dict[tuple[Any, ...], str | None] = {}
    read = 0
    for w in run.values:
        key = (w.graph, w.direction, w.call, w.name)
        if w.summary is None or w.kernel == "(outputs)":
            continue
        if w.phase == "before" and w.launch is not None and key in seen:
            assert w.stored == seen[key], w
            read += 1
        seen[key] = w.stored
    assert read > 10


def place(program: CompiledProgram) -> tuple[int, str]:
    return program.ref.id, program.ref.direction


def has_no_node(program: CompiledProgram, w: Watched) -> bool:
    """Whether what a launch wrote is no node's value: an inner stage of a reduction, or not finished yet."""
    launches = program.model.functions["call"].launches()
    unfinished = any(w.name in launch.writes for launch in launches if w.site is not None and launch.nth > w.site)
    buffer = next((b for b in program.graphs["call"].buffers if b.name == w.name), None)
    return unfinished or buffer is None or buffer.node is None or buffer.removed


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
    from torchsan.torch_internals.wrapper.model import Alias

    return {s.name for s in function.walk() if isinstance(s, Alias)}
