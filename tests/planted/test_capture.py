"""Faults in what Dynamo captured: the capture referee names the function, and finds nothing in the clean twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import torchsan
from torchsan.records import Finding, Kind, Severity, Stage

pytestmark = pytest.mark.filterwarnings("ignore")

Edit = Callable[[torch.fx.Graph], None]
Compile = Callable[..., Any]


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@contextmanager
def planted(edit: Edit | None) -> Iterator[None]:
    """Change each graph as Dynamo hands it over, before anybody sees it."""
    from torch._dynamo.output_graph import OutputGraph

    original = OutputGraph._call_user_compiler

    def call_user_compiler(self: Any, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        if edit is not None:
            edit(gm.graph)
            gm.recompile()
        return original(self, gm, example_inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputGraph, "_call_user_compiler", call_user_compiler)
        yield


def errors(program: Callable[[Compile], None], edit: Edit | None, backend: str = "aot_eager") -> list[Finding]:
    with torchsan.session(check="stages") as run, planted(edit):
        program(lambda fn, **options: torch.compile(fn, **{"backend": backend, **options}))
    failed = [s for s in run.coverage.skipped if "torchsan failed" in s.reason or "not run beside" in s.reason]
    assert not failed, failed
    return [f for f in run.findings if f.severity is Severity.ERROR]


def on(name: str, change: Callable[[torch.fx.Node], None]) -> Edit:
    """Change the first node that calls the function or method of this name."""

    def edit(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if getattr(node.target, "__name__", node.target) == name:
                change(node)
                return

    return edit


def drop(node: torch.fx.Node) -> None:
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]  # its first argument is a node
    node.graph.erase_node(node)


def constant(value: float) -> Callable[[torch.fx.Node], None]:
    def change(node: torch.fx.Node) -> None:
        node.args = (node.args[0], value)

    return change


def call_instead(name: str) -> Callable[[torch.fx.Node], None]:
    def change(node: torch.fx.Node) -> None:
        node.op, node.target = "call_method", name

    return change


def copied(node: torch.fx.Node) -> None:
    with node.graph.inserting_after(node):
        copy = node.graph.call_method("clone", (node,))
    node.replace_all_uses_with(copy)
    copy.args = (node,)


X = torch.linspace(-1, 2, 12).reshape(3, 4)


def statement(compile_: Compile) -> None:
    compile_(lambda x: x.sin().abs() + 1)(X.clone())


def constant_of_the_program(compile_: Compile) -> None:
    compile_(lambda x: (x * 2).sin())(X.clone())


def write_to_an_argument(compile_: Compile) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return torch.ones(3)

    compile_(program)(X.clone())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.zeros(4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        self.total.add_(x.detach().mean(0))
        return self.fc(x)


def write_to_a_buffer(compile_: Compile) -> None:
    compile_(Counting())(X.clone())


def write_to_a_closure(compile_: Compile) -> None:
    seen = torch.zeros(3, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        seen.add_(x)
        return x + 1

    compile_(program)(X.clone())


TABLE = torch.zeros(3, 4)


def write_to_a_global(compile_: Compile) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        TABLE.add_(x)
        return x + 1

    compile_(program)(X.clone())


def identity_of_an_output(compile_: Compile) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        return x.view(4, 3), y

    compile_(program)(X.clone())


def gradient_of_a_parameter(compile_: Compile) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    compile_(model)(X.clone()).square().sum().backward()


def gradient_of_an_intermediate(compile_: Compile) -> None:
    weight = torch.randn(4, requires_grad=True)
    hidden = (X.clone() * weight).exp()
    first, second = compile_(lambda h: (h.sin(), h.cos() * h))(hidden)
    (first.sum() + 2 * second.sum() + weight.sum()).backward()


def broken_graph(compile_: Compile) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y.sin().exp()

    compile_(program)(X.clone())


def dtype_of_an_output(compile_: Compile) -> None:
    compile_(lambda x: (x * 2).double())(X.clone())


def detached(node: torch.fx.Node) -> None:
    with node.graph.inserting_before(node):
        argument = node.graph.call_method("detach", (node.args[0],))
    node.args = (argument, *node.args[1:])


def no_grad_to_weights(graph: torch.fx.Graph) -> None:
    """Detach the weight of the first linear layer."""
    node = next(n for n in graph.nodes if getattr(n.target, "__name__", "") == "linear")
    with graph.inserting_before(node):
        weight = graph.call_method("detach", (node.args[1],))
    node.args = (node.args[0], weight, *node.args[2:])


VALUES, META = Kind.WRONG_VALUES, Kind.METADATA_MISMATCH
LOST = on("add_", call_instead("add"))
FAULTS: dict[str, tuple[Callable[[Compile], None], Edit, Kind, str]] = {
    "a statement is missing": (statement, on("abs", drop), VALUES, "output 0"),
    "a constant is stale": (constant_of_the_program, on("mul", constant(3)), VALUES, "output 0"),
    "a write to an argument is lost": (write_to_an_argument, on("mul_", call_instead("mul")), VALUES, "argument 0"),
    "a write to a buffer is lost": (write_to_a_buffer, LOST, VALUES, "total"),
    "a write to a closure is lost": (write_to_a_closure, LOST, VALUES, "variable seen"),
    "a write to a global is lost": (write_to_a_global, LOST, VALUES, "global TABLE"),
    "a view is a copy": (identity_of_an_output, on("view", copied), META, "output 0"),
    "a weight gets no gradient": (gradient_of_a_parameter, no_grad_to_weights, VALUES, "gradient of 0.weight"),
    "a hidden layer's slope is lost": (gradient_of_an_intermediate, on("mul", detached), VALUES, "gradient of arg"),
    "a statement after a graph break": (broken_graph, on("exp", drop), VALUES, "output 0"),
    "a conversion is missing": (dtype_of_an_output, on("double", drop), META, "output 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_capture_is_found_and_its_clean_twin_is_not(name: str) -> None:
    program, edit, kind, what = FAULTS[name]
    assert errors(program, None) == []
    torch._dynamo.reset()
    (finding,) = errors(program, edit)
    assert (finding.stage, finding.kind) == (Stage.CAPTURE, kind)
    assert what in finding.message


LOG: list[int] = []


class Logged:
    """Its methods write to a global."""

    def note(self, n: int) -> int:
        LOG.append(n)
        return n


PYTHON: dict[str, tuple[Callable[[torch.Tensor, bool], Any], Kind, str]] = {
    "a list is longer": (lambda x, wrong: (x, [1] * (3 if wrong else 1)), VALUES, "output 1 is list of 3, not list of"),
    "a dict has another order": (
        lambda x, wrong: dict.fromkeys("ba" if wrong else "ab", x),
        VALUES,
        "output 0 is dict of 2: 'b', 'a', not dict of 2: 'a', 'b'",
    ),
    "a set has another item": (lambda x, wrong: (x, {1, 2 if wrong else 3}), VALUES, "output 1 is set of 2: 1, 2, not"),
    "True is 1": (lambda x, wrong: (x, 1 if wrong else True), VALUES, "output 1 is 1, not True"),
    "None is a number": (lambda x, wrong: (x, 5 if wrong else None), VALUES, "output 1 is 5, not None"),
    "a number is a tensor": (lambda x, wrong: (x, x.sum() if wrong else 5), META, "output 1 is a tensor, and is 5 in"),
    "a method's write is lost": (
        lambda x, wrong: x if wrong else (Logged().note(1), x)[1],
        VALUES,
        "global LOG is list of 0, not list of 1",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_value_that_is_another_when_compiled_is_found(name: str) -> None:
    function, kind, what = PYTHON[name]

    def program(wrong: bool, compile_: Compile) -> None:
        LOG.clear()
        compile_(lambda x: function(x + 1, wrong and torch.compiler.is_compiling()))(X.clone())

    assert errors(partial(program, False), None) == []
    torch._dynamo.reset()
    (finding,) = errors(partial(program, True), None)
    assert (finding.stage, finding.kind) == (Stage.CAPTURE, kind)
    assert what in finding.message


@pytest.mark.parametrize("unguarded", [True, False])
def test_a_guard_that_lets_a_wrong_graph_run_on_a_later_call_is_found(unguarded: bool) -> None:
    state = {"factor": 1}

    def program(compile_: Compile) -> None:
        scaled = compile_(lambda x: x * state["factor"])
        for state["factor"] in (1, 1, 1, 2):
            with torch.compiler.set_stance(skip_guard_eval_unsafe=unguarded and state["factor"] == 2):
                scaled(X.clone())

    found = [(f.stage, "output 0" in f.message) for f in errors(program, None)]
    assert found == ([(Stage.CAPTURE, True)] if unguarded else [])


@pytest.mark.parametrize("ambient", [True, False])
def test_an_inner_autocast_that_the_compiled_backward_ignores_is_found(ambient: bool) -> None:
    def program(compile_: Compile) -> None:
        layer = nn.Linear(64, 64)

        def inner(x: torch.Tensor) -> Any:
            with torch.autocast("cpu", enabled=False):
                return layer(x).sin()

        x = torch.randn(8, 64, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ambient):
            y = compile_(inner)(x)
        y.sum().backward()

    found = [(f.stage, f.message.partition(": ")[2][:11]) for f in errors(program, None)]
    assert found == ([(Stage.CAPTURE, "gradient of")] if ambient else [])


class Slope(torch.autograd.Function):
    """What pytorch#192985 is about: Dynamo never calls its `jvp`."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tangent)


@pytest.mark.parametrize(("function", "stages"), [(Slope.apply, [Stage.CAPTURE]), (torch.sin, [])])
def test_a_jvp_that_dynamo_drops_is_found(function: Any, stages: list[Stage]) -> None:
    def program(compile_: Compile) -> None:
        compile_(lambda x, t: torch.func.jvp(function, (x,), (t,))[1])(X.clone(), torch.ones_like(X))

    assert [f.stage for f in errors(program, None)] == stages


def test_a_kernel_that_is_known_to_be_wrong_explains_every_compile_of_its_graph() -> None:
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return (x * 2).relu()

    layer = Layer()
    wrong = torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"})
    with torchsan.session(calls=1) as session, wrong:
        for _ in range(3):
            torch.compile(layer)(torch.randn(20, 20))
    assert {f.stage for f in session.findings} == {Stage.KERNEL}
