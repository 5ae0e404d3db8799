"""Faults planted in each step of a compile: the stages check names the step, and finds nothing in the clean twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition

import torchsan
from torchsan.records import Finding, Kind, Severity, Stage

aten = torch.ops.aten
GraphPass = Callable[[torch.fx.Graph], None]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def found(program: Callable[[], object], **config: Any) -> list[Finding]:
    with torchsan.session(check="stages") as run, inductor_config.patch(force_disable_caches=True, **config):
        program()
    return list(run.findings)


def nop(gm: torch.fx.GraphModule, _inputs: object) -> Any:
    return gm.forward


def edit(target: object, change: Callable[[torch.fx.Node], None], *, last: bool = False) -> GraphPass:
    """A pass that changes the first node, or the last, that calls `target`."""

    def graph_pass(graph: torch.fx.Graph) -> None:
        nodes = [n for n in graph.nodes if n.target in (target, getattr(target, "__name__", None))]
        for node in nodes[-1:] if last else nodes[:1]:
            change(node)

    return graph_pass


def halve_constant(node: torch.fx.Node) -> None:
    node.args = (node.args[0], 0.25)


def swap(node: torch.fx.Node) -> None:
    node.args = (node.args[1], node.args[0])


def drop(node: torch.fx.Node) -> None:
    node.graph.erase_node(node)


def bypass(node: torch.fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)


def nothing(_graph: torch.fx.Graph) -> None:
    pass


def scale(x: torch.Tensor, y: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state.add_(1)
    return x - y * 0.5, x.clone()


def call_scale() -> None:
    with torch.no_grad():
        torch.compile(scale)(torch.randn(8), torch.randn(8), torch.zeros(3))


PASSES = [
    ("joint_custom_pre_pass", edit(aten.mul.Tensor, halve_constant), Stage.JOINT_PASSES, Kind.WRONG_VALUES),
    ("joint_custom_post_pass", edit(aten.sub.Tensor, swap), Stage.JOINT_PASSES, Kind.WRONG_VALUES),
    ("post_grad_custom_pre_pass", edit(aten.mul.Tensor, halve_constant), Stage.POST_GRAD_PASSES, Kind.WRONG_VALUES),
    ("post_grad_custom_post_pass", edit(aten.sub.Tensor, swap), Stage.POST_GRAD_PASSES, Kind.WRONG_VALUES),
]


@pytest.mark.parametrize(("name", "fault", "stage", "kind"), PASSES, ids=[p[0] for p in PASSES])
def test_a_wrong_pass_is_named(name: str, fault: GraphPass, stage: Stage, kind: Kind) -> None:
    (finding,) = found(call_scale, **{name: fault})
    assert (finding.kind, finding.stage, finding.pass_) == (kind, stage, name)
    assert finding.severity is Severity.ERROR
    assert finding.source[0].code == "return x - y * 0.5, x.clone()"
    assert "\n-" in finding.evidence["diff"]
    assert "\n+" in finding.evidence["diff"]
    assert finding.evidence["first_bad"] == [0]
    assert f"the pass is edit.<locals>.graph_pass at {__file__}:" in "\n".join(finding.evidence["text"])


def test_a_wrong_pass_before_autograd_is_named() -> None:
    import operator

    (finding,) = found(call_scale, pre_grad_custom_pass=edit(operator.sub, swap))
    assert (finding.stage, finding.pass_) == (Stage.AOT, "pre_grad_custom_pass")


def test_a_pass_that_drops_a_mutation_is_named() -> None:
    (finding,) = found(call_scale, post_grad_custom_post_pass=edit(aten.copy_.default, drop))
    assert (finding.stage, finding.pass_) == (Stage.POST_GRAD_PASSES, "post_grad_custom_post_pass")
    assert finding.evidence["results"] == ["input state after the call"]


def test_a_pass_that_makes_an_output_alias_an_input_is_named() -> None:
    (finding,) = found(call_scale, joint_custom_post_pass=edit(aten.clone.default, bypass))
    assert finding.kind is Kind.UNDECLARED_ALIAS
    assert (finding.stage, finding.pass_) == (Stage.JOINT_PASSES, "joint_custom_post_pass")


def narrow(node: torch.fx.Node) -> None:
    with node.graph.inserting_after(node):
        narrower = node.graph.call_function(torch.ops.prims.convert_element_type.default, (node, torch.bfloat16))
    narrower.meta["val"] = node.meta["val"].to(torch.bfloat16)
    node.replace_all_uses_with(narrower, delete_user_cb=lambda user: user is not narrower)


@pytest.mark.parametrize(("name", "stage"), [(p[0], p[2]) for p in PASSES[1::2]])
def test_a_pass_that_changes_the_dtype_of_an_output_is_named(name: str, stage: Stage) -> None:
    (finding,) = found(call_scale, **{name: edit(aten.sub.Tensor, narrow)})
    assert (finding.kind, finding.stage, finding.pass_) == (Kind.METADATA_MISMATCH, stage, name)
    assert "output 0 is bfloat16[8], not float32[8]" in finding.message
    assert finding.ops == ("prims.convert_element_type.default",)
    assert finding.source[0].code == "return x - y * 0.5, x.clone()"


def test_a_wrong_kernel_that_nothing_else_looks_at_is_named_by_its_line() -> None:
    def program() -> None:
        torch.compile(lambda x: x.sin().relu())(torch.randn(8, 8))

    config = {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}
    (finding,) = found(program, **config)
    assert (finding.kind, finding.stage, finding.kernel) == (Kind.WRONG_VALUES, Stage.KERNEL, None)
    assert "aten.relu.default" in finding.ops
    assert finding.source[0].code == "torch.compile(lambda x: x.sin().relu())(torch.randn(8, 8))"


def test_passes_that_change_nothing_that_matters_are_not_named() -> None:
    names = [p[0] for p in PASSES]
    assert found(call_scale, pre_grad_custom_pass=nothing, **dict.fromkeys(names, nothing)) == []


def curve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    product = x @ w
    return torch.nn.functional.silu(product).tanh() * 3


def train(backend: Any) -> Callable[[], None]:
    def program() -> None:
        x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
        y: Any = torch.compile(curve, backend=backend)(x, w)
        y.sum().backward()

    return program


def wrong_silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x * 1.125)


def right_silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def wrong_tanh_backward(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return grad * (1 - y)


def right_tanh_backward(grad: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return grad * (1 - y * y)


def test_a_wrong_decomposition_is_aots_and_names_the_operator() -> None:
    backend = aot_autograd(fw_compiler=nop, decompositions={aten.silu.default: wrong_silu})
    (finding,) = found(train(backend))
    assert (finding.kind, finding.stage, finding.pass_) == (Kind.WRONG_VALUES, Stage.AOT, None)
    assert "aten.silu.default" in finding.ops
    assert "aten.mm.default" not in finding.ops


def test_a_wrong_decomposition_of_a_backward_shows_in_the_gradients() -> None:
    backend = aot_autograd(fw_compiler=nop, decompositions={aten.tanh_backward.default: wrong_tanh_backward})
    (finding,) = found(train(backend))
    assert (finding.kind, finding.stage) == (Kind.WRONG_VALUES, Stage.AOT)
    assert finding.evidence["results"] == ["gradient of input w"]


def test_right_decompositions_are_not_reported() -> None:
    table = {aten.silu.default: right_silu, aten.tanh_backward.default: right_tanh_backward}
    assert found(train(aot_autograd(fw_compiler=nop, decompositions=table))) == []


def test_a_wrong_pass_on_the_joint_graph_is_named() -> None:
    def wrong(gm: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        edit(aten.mul.Tensor, lambda n: setattr(n, "args", (n.args[0], 4)), last=False)(gm.graph)
        return gm

    with functorch_config.patch(joint_custom_pass=wrong):
        (finding,) = found(train("aot_eager"))
    assert (finding.stage, finding.pass_) == (Stage.JOINT_PASSES, "joint_custom_pass")


def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x @ w, 0.5).square()


def train_noisy(backend: Any) -> Callable[[], None]:
    def program() -> None:
        x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
        y: Any = torch.compile(noisy, backend=backend)(x, w)
        y.sum().backward()

    return program


def draws_again(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
    """Partition, then draw the numbers of the forward a second time in the backward."""
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
    mask = next(n for n in backward.graph.nodes if n.op == "placeholder" and n.meta["val"].dtype is torch.bool)
    with backward.graph.inserting_after(list(backward.graph.find_nodes(op="placeholder"))[-1]):
        drawn = backward.graph.call_function(aten.rand.default, ([8, 8],))
    with backward.graph.inserting_after(drawn):
        again = backward.graph.call_function(aten.gt.Scalar, (drawn, 0.5))
    mask.replace_all_uses_with(again)
    backward.recompile()
    return forward, backward


def test_a_partition_that_draws_random_numbers_twice_is_named() -> None:
    (finding,) = found(train_noisy(decomposed(draws_again)))
    assert (finding.stage, finding.pass_) == (Stage.AOT, "partition")
    assert finding.evidence["results"] == ["gradient of input w"]


def test_a_partition_that_keeps_them_is_not_reported() -> None:
    assert found(train_noisy(decomposed(default_partition))) == []


def decomposed(partition: Any) -> Any:
    from torch._inductor.decomposition import select_decomp_table

    return aot_autograd(fw_compiler=nop, partition_fn=partition, decompositions=select_decomp_table)


def half_precise(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
    """Partition, then leave the backward in the bfloat16 of an autocast region that the program had left."""
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
    tangent = next(n for n in backward.graph.nodes if "tangents" in n.name)
    with backward.graph.inserting_after(list(backward.graph.find_nodes(op="placeholder"))[-1]):
        low = backward.graph.call_function(aten._to_copy.default, (tangent,), {"dtype": torch.bfloat16})
    with backward.graph.inserting_after(low):
        high = backward.graph.call_function(aten._to_copy.default, (low,), {"dtype": torch.float32})
    tangent.replace_all_uses_with(high, delete_user_cb=lambda user: user is not low)
    backward.recompile()
    return forward, backward


def train_outside_autocast(partition: Any) -> Callable[[], None]:
    def program() -> None:
        def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                low = x @ x
            return low.float() + x @ w

        x, w = torch.randn(16, 16), torch.randn(16, 16, requires_grad=True)
        y: Any = torch.compile(step, backend=aot_autograd(fw_compiler=nop, partition_fn=partition))(x, w)
        (y * torch.randn(16, 16)).sum().backward()

    return program


def test_a_backward_that_ignores_where_autocast_ends_is_named() -> None:
    (finding,) = found(train_outside_autocast(half_precise))
    assert (finding.stage, finding.pass_) == (Stage.AOT, "partition")
    assert finding.kind in (Kind.PRECISION_LOSS, Kind.WRONG_VALUES)
    assert found(train_outside_autocast(default_partition)) == []


def test_a_wrong_pass_on_the_backward_alone_is_named() -> None:
    def last_only(graph: torch.fx.Graph) -> None:
        if any("tangents" in n.name for n in graph.nodes):
            edit(aten.sub.Tensor, swap)(graph)

    (finding,) = found(train("inductor"), post_grad_custom_post_pass=last_only)
    assert (finding.stage, finding.pass_) == (Stage.POST_GRAD_PASSES, "post_grad_custom_post_pass")
    assert finding.graph is not None
    assert finding.graph.direction == "backward"
    assert found(train("inductor"), post_grad_custom_post_pass=nothing) == []


def test_a_backend_that_returns_something_else_is_reported_as_such() -> None:
    def wrong(gm: torch.fx.GraphModule, _inputs: object) -> Any:
        return lambda *args: [out * 1.5 for out in gm(*args)]

    def program(backend: Any) -> None:
        with torch.no_grad():
            torch.compile(curve, backend=backend)(torch.randn(3, 3), torch.randn(3, 3))

    (finding,) = found(lambda: program(wrong))
    assert (finding.stage, finding.kind, finding.severity) == (Stage.KERNEL, Kind.WRONG_VALUES, Severity.ERROR)
    assert found(lambda: program(nop)) == []


def test_a_graph_reused_for_inputs_that_overlap_is_aots() -> None:
    def double_then_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + y

    def program(offset: int) -> None:
        compiled = torch.compile(double_then_add, backend="aot_eager")
        compiled(torch.ones(4), torch.ones(4))
        base = torch.ones(12)
        compiled(base[:4], base[offset : offset + 4])

    (finding,) = found(lambda: program(2))
    assert (finding.kind, finding.stage) == (Kind.WRONG_VALUES, Stage.AOT)
    assert found(lambda: program(8)) == []


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1.5


def test_the_gradients_of_a_backend_without_aotautograd_are_compared_too() -> None:
    def wrong(gm: torch.fx.GraphModule, _inputs: object) -> Any:
        return lambda *args: [_WrongGradient.apply(out) for out in gm(*args)]

    def program(backend: Any) -> None:
        w = torch.randn(3, 3, requires_grad=True)
        torch.compile(curve, backend=backend)(torch.randn(3, 3), w).sum().backward()

    (finding,) = found(lambda: program(wrong))
    assert (finding.stage, finding.kind, finding.severity) == (Stage.KERNEL, Kind.WRONG_VALUES, Severity.ERROR)
    assert any(result.startswith("gradient of input") for result in finding.evidence["results"])
    assert found(lambda: program(nop)) == []


def test_gradients_that_compiled_autograd_computes_are_said_to_be_skipped() -> None:
    from torch._dynamo import compiled_autograd

    x = torch.randn(3, 3, requires_grad=True)
    with torchsan.session(check="stages") as run, compiled_autograd._enable(torch.compile(backend="eager")):
        torch.compile(curve, backend="aot_eager")(x, x).sum().backward()
    assert any("compiled autograd" in s.reason for s in run.coverage.skipped)
    assert not run.findings


def solve(x: torch.Tensor) -> torch.Tensor:
    solution: torch.Tensor = torch.linalg.solve(x.tanh() - 3.0 * torch.eye(4), x)
    return solution


@pytest.mark.parametrize("backward", [False, True])
def test_a_pass_beside_an_operator_that_is_kept_in_order(backward: bool) -> None:
    """`torch.linalg` looks for errors by an operator with an effect, for which graphs have tokens."""

    def program() -> None:
        y = torch.compile(solve)(torch.randn(4, 4, requires_grad=backward))
        if backward:
            y.sum().backward()

    with torchsan.session(check="stages") as run, inductor_config.patch(force_disable_caches=True):
        program()
    assert not run.findings
    assert not run.coverage.skipped
    (finding,) = found(program, post_grad_custom_post_pass=edit(aten.sub.Tensor, swap))
    assert (finding.kind, finding.severity) == (Kind.WRONG_VALUES, Severity.ERROR)
    assert (finding.stage, finding.pass_) == (Stage.POST_GRAD_PASSES, "post_grad_custom_post_pass")


def test_a_decomposition_that_cancels_loses_precision_and_is_no_error() -> None:
    """`sigmoid(x) - 1` for what eager computes as `exp(-x) / (1 + exp(-x))`: the same in float64."""
    x = torch.tensor(15.5, requires_grad=True)
    findings = found(lambda: torch.compile(torch.nn.functional.soft_margin_loss)(x, torch.tensor(1.0)).backward())
    assert [(f.kind, f.severity, f.stage) for f in findings] == [(Kind.PRECISION_LOSS, Severity.WARNING, Stage.AOT)]
