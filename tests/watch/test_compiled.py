"""Programs with more to them than one graph: each launch that runs is watched, and the results stay the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._higher_order_ops import while_loop

from tests.watch.counting import count_kernels, generated_modules
from torchsan.cli.values import watched_values
from torchsan.options import Options, Watch
from torchsan.recording import Reader
from torchsan.records import Watched
from torchsan.records.tensor import value_key
from torchsan.session import Session

X = torch.linspace(-1, 1, 16).view(4, 4)


def watched(
    folder: Path, run: Callable[[Callable[[], Counter[str]]], Any], watch: str = "save"
) -> tuple[Any, list[Watched], Reader]:
    """Run in a session without checks, which would launch kernels too; `run` gets what starts counting launches."""
    known = len(generated_modules())

    def start() -> Counter[str]:
        return count_kernels(generated_modules()[known:])

    with Session(Options(check=(), watch=Watch(watch), out=str(folder / "run"))):
        result = run(start)
    torch._dynamo.reset()
    reader = Reader(folder / "run")
    return result, watched_values(reader), reader


def launches(values: list[Watched], first_call: int = 0) -> Counter[str]:
    keys = {(w.graph, w.direction, w.call, w.launch, w.kernel) for w in values if w.launch is not None}
    return Counter(kernel for _, _, call, _, kernel in keys if call >= first_call)


def test_branches_and_loops(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = torch.cond(x.sum() > 0, lambda x: x.sin() @ x, lambda x: x.cos(), (x,))
        loop: Callable[..., Any] = while_loop
        result: torch.Tensor = loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))[1]
        return result

    def run(start: Callable[[], Counter[str]]) -> Any:
        compiled = torch.compile(f)
        compiled(X)
        counts = start()
        return [compiled(X), compiled(X + 2)], counts

    (results, counts), values, reader = watched(tmp_path, run)
    assert launches(values, first_call=1) == counts
    assert not reader.coverage().skipped
    for result, x in zip(results, (X, X + 2), strict=True):
        torch.testing.assert_close(result, f(x))
    # The loop's kernels come again, each time with another value.
    turns = [w for w in values if w.call == 1 and w.phase == "after" and "body_graph" in w.name and w.summary]
    sines = [w.summary.values for w in turns if w.summary and w.summary.meta.dtype == "float32"]
    assert len(sines) == len(set(sines)) == 3


def test_graph_breaks_new_sizes_threads_and_a_compiled_function_inside(tmp_path: Path) -> None:
    inner = torch.compile(lambda x: x.sin() + x.shape[0])

    def f(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = inner(x).exp()
        torch._dynamo.graph_break()
        return y.cos()

    inputs = [torch.full((n, 3), 0.1 * n) for n in (2, 5, 7, 9)]

    def run(start: Callable[[], Counter[str]]) -> Any:
        compiled = torch.compile(f)
        results = [compiled(x) for x in inputs[:3]]
        counts = start()
        more: dict[int, torch.Tensor] = {}
        threads = [threading.Thread(target=lambda i=i: more.update({i: compiled(inputs[i])})) for i in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results, more, counts

    (results, more, counts), values, reader = watched(tmp_path, run)
    for i, result in [*enumerate(results), *more.items()]:
        torch.testing.assert_close(result, f(inputs[i]))
    assert len(reader.graphs()) >= 2
    calls = Counter((w.graph, w.call) for w in values if w.launch == 0 and w.phase == "after")
    assert len(calls) == 2 * (len(results) + len(more))
    assert sum(counts.values()) == 2 * len(more)
    keys = [value_key(w) for w in values if w.stored is not None]
    assert len(keys) == len(set(keys))
    sizes = {w.value for w in values if w.name.startswith("s") and w.phase == "before" and w.launch is not None}
    assert {5, 7, 9} <= sizes


def test_constants_of_a_frozen_program_are_seen(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()

    def run(start: Callable[[], Counter[str]]) -> Any:
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            compiled = torch.compile(model)
            compiled(X)
            counts = start()
            return compiled(X), counts

    (result, counts), values, _ = watched(tmp_path, run, watch="print")
    torch.testing.assert_close(result, model(X))
    assert launches(values, first_call=1) == counts
    weights = [
        w for w in values if w.phase == "before" and w.summary and w.kernel != "(inputs)" and "buf" not in w.name
    ]
    assert any("frozen" in w.name or "constant" in w.name for w in weights), [w.name for w in weights]


@pytest.mark.slow
def test_max_autotune(tmp_path: Path) -> None:
    linear = torch.nn.Linear(32, 32)

    def run(start: Callable[[], Counter[str]]) -> Any:
        with torch.no_grad():
            compiled = torch.compile(lambda x: linear(x).relu(), mode="max-autotune")
            x = torch.ones(32, 32)
            compiled(x)
            counts = start()
            return compiled(x), counts

    (result, counts), values, _ = watched(tmp_path, run)
    torch.testing.assert_close(result, linear(torch.ones(32, 32)).relu())
    assert launches(values, first_call=1) == counts
    assert counts


def test_random_numbers_are_drawn_as_without_torchsan(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.5) * torch.rand_like(x)

    def run(start: Callable[[], Counter[str]] | None = None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        compiled = torch.compile(f)
        return [compiled(X), compiled(X), torch.rand(2)]

    results, _, _ = watched(tmp_path, run)
    for one, other in zip(results, run(), strict=True):
        assert torch.equal(one, other)
    torch._dynamo.reset()


def test_a_library_routine_has_the_line_of_its_own_operator_first(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        read = torch.nn.functional.silu(x)
        return read @ x

    _, _, reader = watched(tmp_path, lambda start: (torch.compile(f)(X), start()))
    (graph,) = reader.graphs()
    (routine,) = [k for k in graph.kernels if k.name == "extern_kernels.mm"]
    assert routine.source[0].code == "return read @ x"
