"""No error on healthy programs and models, and outputs that are the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.memory import PROGRAMS, with_pytorchs_tracker, with_torchsan
from torch import Tensor, nn

import torchsan
from tests.models import cnn, step, transformer
from tests.programs.clean import CLEAN
from tests.programs.models import MODELS
from torchsan.records import Severity

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit._script")

QUICK = (
    "batch_norm_in_training",
    "dropout_in_training",
    "bfloat16_through_and_through",
    "three_steps_of_adam",
    "inputs_mutated_in_place",
    "scatter_with_duplicates",
    "empty_and_zero_dimensional",
    "dynamic_shapes",
    "control_flow",
    "embedding_and_cross_entropy",
)


def complaints(program: Callable[[], Any], **options: Any) -> list[str]:
    torch.manual_seed(0)
    with torchsan.session(check="memory", **options) as run:
        program()
    assert run.coverage.kernels
    failures = [s.reason for s in run.coverage.skipped if "torchsan failed" in s.reason]
    assert not failures
    return [f"{f.severity}: {f.message}" for f in run.findings if f.severity is not Severity.NOTE]


@pytest.mark.parametrize("name", QUICK)
def test_a_healthy_program(name: str) -> None:
    assert complaints(CLEAN[name]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss:UserWarning")
@pytest.mark.parametrize("name", [n for n in CLEAN if n not in QUICK])
def test_every_healthy_program(name: str) -> None:
    assert complaints(CLEAN[name]) == []


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "MLP, training" else []) for n in PROGRAMS]
)
def test_a_program_on_which_pytorchs_tracker_raises(name: str) -> None:
    assert complaints(PROGRAMS[name]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_says_of_pytorchs_tracker_what_it_does(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "memory.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    _, _, theirs, ours, _ = (cell.strip() for cell in row.split("|"))
    said = with_pytorchs_tracker(PROGRAMS[name])
    assert theirs.startswith("raises: ")
    assert theirs.removeprefix("raises: ") in said.lower()
    # How many kernels there are depends on the machine.
    assert with_torchsan(PROGRAMS[name]).partition(",")[0] == ours.partition(",")[0] == "nothing"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # transformers warns of its own deprecations
@pytest.mark.parametrize("name", MODELS)
def test_a_transformers_model(name: str) -> None:
    assert complaints(MODELS[name]) == []


def test_concatenation_and_memory_left_empty_on_purpose() -> None:
    def f(x: Tensor, i: Tensor) -> Any:
        summed = torch.zeros(10, 4).scatter_add(0, i, x)
        scratch = torch.empty(3)
        filled = torch.empty(4, 4)
        filled[:2] = x[:2]
        parts = torch.cat([summed, x.relu(), x + 1]), torch.cat([x.sin(), x.cos()], dim=1)
        return (*parts, scratch, filled, torch.empty(6).clone())

    assert complaints(lambda: torch.compile(f)(torch.randn(5, 4), torch.randint(0, 10, (5, 4)))) == []


@pytest.mark.filterwarnings("ignore")
def test_a_write_through_a_view_that_an_operator_gave() -> None:
    """Inductor generates no code for complex numbers: the view and the write into it are calls of operators."""

    def program(dtype: torch.dtype) -> Tensor:
        compiled = torch.compile(lambda x, y: torch.diagonal_scatter(x, y) * 2)
        return compiled(torch.randn(5, 5, dtype=dtype), torch.randn(5, dtype=dtype))

    assert not complaints(lambda: program(torch.complex64))
    assert not complaints(lambda: program(torch.float32))


def test_integers_that_hold_the_pattern() -> None:
    """The largest integer is what unwritten memory holds; a program that computes it is right all the same."""

    def f(x: Tensor) -> Any:
        full = torch.where(x > 0, torch.iinfo(torch.int64).max, 3)
        return full.sort(-1).values, (x > 0).to(torch.int8) * 127, full.clamp(max=5)

    assert complaints(lambda: torch.compile(f)(torch.randn(9, 5))) == []


def mlp_twice() -> list[Tensor]:
    layers = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.2), nn.Linear(48, 7))
    compiled = torch.compile(layers)
    x = torch.randn(6, 24, requires_grad=True)
    results = []
    for _ in range(2):
        y = compiled(x)
        y.square().sum().backward()
        assert x.grad is not None
        results += [y.detach().clone(), x.grad.clone()]
    return results + [p.grad.clone() for p in layers.parameters() if p.grad is not None]


def cnn_with_batch_norm() -> list[Tensor]:
    model, inputs = cnn()
    return step(model, torch.compile(model), inputs)


def transformer_layer() -> list[Tensor]:
    model, inputs = transformer()
    return step(model, torch.compile(model), inputs)


def integers_and_bools() -> list[Tensor]:
    def f(x: Tensor, i: Tensor, m: Tensor) -> Any:
        counted = (i * 3 + m).cumsum(1)
        best = x.argmax(1)
        small = (i % 7).to(torch.int8)
        masks = m.logical_xor(counted > 20), ~(small == 3) & m, masked(x, m)
        scattered = torch.zeros(9, 33, dtype=torch.int32).scatter_add(0, i.abs() % 9, small.to(torch.int32))
        return counted, best, small, *masks, scattered, torch.nn.functional.one_hot(best, 33), i.sort(1).values

    def masked(x: Tensor, m: Tensor) -> Tensor:
        return torch.where(m, x.bfloat16(), 0).any(0)

    x, i = torch.randn(9, 33), torch.randint(-50, 50, (9, 33))
    return [t.clone() for t in torch.compile(f)(x, i, x > 0.3)]


def three_training_steps() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, target = torch.randn(16, 12), torch.randint(0, 5, (16,))

    def compute_loss() -> Any:
        return nn.functional.cross_entropy(model(x), target)

    compiled, update = torch.compile(compute_loss), torch.compile(optimizer.step)
    results = []
    for _ in range(3):
        loss = compiled()
        loss.backward()
        results += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        update()
        optimizer.zero_grad()
    return results + [t.clone() for t in model.state_dict().values()]


@pytest.mark.parametrize(
    "program",
    [
        mlp_twice,
        cnn_with_batch_norm,
        integers_and_bools,
        pytest.param(transformer_layer, marks=pytest.mark.slow),
        pytest.param(three_training_steps, marks=pytest.mark.slow),
    ],
)
def test_outputs_gradients_and_state_are_the_same_to_the_bit(program: Callable[[], list[Tensor]]) -> None:
    torch.manual_seed(0)
    plain = program()
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session(check="memory", calls="all") as run:
        checked = program()
    assert run.findings == ()
    assert run.coverage.kernels
    assert [(t.dtype, t.shape, t.stride()) for t in plain] == [(t.dtype, t.shape, t.stride()) for t in checked]
    for a, b in zip(plain, checked, strict=True):
        assert torch.equal(a.view(torch.uint8) if a.dim() else a, b.view(torch.uint8) if b.dim() else b)


def test_what_is_returned_looks_like_what_the_program_allocates() -> None:
    with torchsan.session(check="memory"):
        (y, view) = torch.compile(lambda x: (x.sin(), x.cos().view(4, 16)[:, :3]))(torch.ones(64))
    assert y.storage_offset() == 0
    assert y.untyped_storage().nbytes() == 256
    assert y.stride() == (1,)
    assert y.data_ptr() % 64 == 0
    assert view.shape == (4, 3)
    y.add_(1)
    assert not y._is_view()


def test_a_program_that_overflows_keeps_its_guard_zones() -> None:
    from tests.planted.plant import in_kernel, planted

    with torchsan.session(check="memory", calls=1) as run, planted(in_kernel("cpp_fused", "out_ptr0[64] = 1;")):
        f = torch.compile(lambda x: x.sin() + 2)
        for _ in range(4):
            assert torch.equal(f(torch.ones(64)), torch.ones(64).sin() + 2)
    assert [str(finding.kind) for finding in run.findings] == ["out-of-bounds-write"]
    assert [s.what for s in run.coverage.skipped] == ["3 calls of graph 0 inference"]


def test_lifetimes_alone(tmp_path: Any) -> None:
    from torchsan.recording import Reader

    assert complaints(CLEAN["batch_norm_in_training"], no_guards=True, out=tmp_path / "run") == []
    events = Reader(tmp_path / "run").events("memory")
    forward = next(e for e in events if e["direction"] == "forward")
    assert forward["peak"] >= forward["planned_peak"] > 0
    assert forward["saved"] > 0
    assert forward["timeline"]
    assert sum(e["bytes"] for e in forward["by_source"]) == forward["peak"]
    assert any(e["file"] for e in forward["by_source"])
