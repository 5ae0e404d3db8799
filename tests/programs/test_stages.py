"""No `error` on healthy programs, whatever the backend; what cannot be checked says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchsan
from tests.programs.clean import CLEAN
from torchsan.records import Severity

EVERY_DAY = {
    "dropout_in_training",
    "random_numbers_of_every_kind",
    "autocast_to_bfloat16",
    "ties_in_sorting_and_maxima",
    "three_steps_of_adam",
    "activation_checkpointing",
    "inputs_mutated_in_place",
    "dynamic_shapes",
    "graph_breaks",
    "gradients_through_two_graphs",
    "jagged_tensors",
    "control_flow",
}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def errors(program: Callable[[], Any]) -> list[str]:
    # Without the values check nothing else answers for the compiled code, so this is the strictest.
    with torchsan.session(check="stages") as run:
        program()
    return [f.message for f in run.findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in CLEAN])
def test_no_error_on_a_healthy_program(name: str) -> None:
    assert errors(CLEAN[name]) == []


def train(model: nn.Module, x: torch.Tensor, steps: int = 2) -> None:
    compiled: Any = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()


def cnn() -> None:
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2)]
    train(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), torch.randn(4, 3, 12, 12))


def transformer() -> None:
    train(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), torch.randn(2, 8, 32))


def language_model(make: Callable[[], Any]) -> Callable[[], None]:
    def program() -> None:
        model: Any = torch.compile(make())
        ids = torch.randint(64, (2, 8))
        for _ in range(2):
            model(input_ids=ids, labels=ids).loss.backward()

    return program


def gpt2() -> Any:
    t: Any = __import__("transformers")  # It is annotated, but not for calling.
    return t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32))


def llama() -> Any:
    t: Any = __import__("transformers")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=64, **size))


@pytest.mark.slow
@pytest.mark.parametrize("model", [cnn, transformer, language_model(gpt2), language_model(llama)])
def test_no_error_on_a_healthy_model(model: Callable[[], None]) -> None:
    assert errors(model) == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_no_error_with_another_backend_and_its_graph_counts_as_observed(backend: str) -> None:
    def views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.gelu(x @ w)
        return y.view(-1), y.t(), x[1:], x

    with torchsan.session(check="stages") as run:
        x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
        outputs: Any = torch.compile(views, backend=backend)(x, w)
        (outputs[0].sum() + outputs[1].square().sum()).backward()
    assert run.findings == ()
    assert run.coverage.graphs == 1
    assert run.coverage.buffers_checked > 0


def test_a_tensor_subclass_is_skipped_and_said_so() -> None:
    class Tagged(torch.Tensor):
        pass

    with torchsan.session(check="stages") as run:
        torch.compile(torch.sin, backend="eager")(torch.ones(3).as_subclass(Tagged))
    assert run.findings == ()
    assert "a tensor subclass" in "".join(s.reason for s in run.coverage.skipped)


def test_the_program_gets_the_same_numbers_and_random_numbers_with_the_check() -> None:
    def program() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        torch._dynamo.reset()
        x = torch.randn(8, requires_grad=True)
        state = torch.zeros(8)

        def step(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            state.add_(x.detach())
            return F.dropout(x.exp(), 0.5)

        y: Any = torch.compile(step, backend="aot_eager")(x, state)
        y.sum().backward()
        assert x.grad is not None
        return x.grad, state, torch.rand(4)

    plain = program()
    with torchsan.session(check="stages"):
        checked = program()
    assert all(torch.equal(a, b) for a, b in zip(plain, checked, strict=True))


def test_nothing_is_left_behind() -> None:
    from torch._dynamo.output_graph import OutputGraph
    from torch._functorch import aot_autograd
    from torch._inductor import compile_fx, pattern_matcher
    from torch.fx.passes.graph_transform_observer import GraphTransformObserver

    def state() -> list[object]:
        return [
            OutputGraph._call_user_compiler,
            vars(aot_autograd)["aot_stage2_compile"],
            compile_fx._recursive_joint_graph_passes,
            pattern_matcher.ReplacementPatternEntry.apply,
            GraphTransformObserver.__enter__,
            GraphTransformObserver.__exit__,
        ]

    before = state()
    with pytest.raises(ZeroDivisionError), torchsan.session(check="stages"):
        assert state() != before
        raise ZeroDivisionError
    assert state() == before
