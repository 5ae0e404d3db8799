"""The nodes that Inductor fuses, whose operators the program never calls, are compared with what the graph says."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.fx

import torchsan
from tests.planted.operators import operator
from torchsan.calls import CrossReference, crossref
from torchsan.checks.metadata import nodes
from torchsan.records import Kind, Severity, Stage

pytestmark = pytest.mark.xdist_group("compiled")

Lower = Callable[[str], Any]


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Lower:
    """Lets Inductor generate `x * 2` for a planted operator: compiled programs then do not call it."""
    from torch._inductor.lowering import lowerings

    def lower(name: str) -> Any:
        monkeypatch.setitem(lowerings, operator(name), lambda x: lowerings[torch.ops.aten.mul.Tensor](x, 2))
        return operator(name)

    return lower


def sample() -> torch.Tensor:
    return torch.arange(1.0, 13).reshape(3, 4)


def watched(function: Callable[..., Any], *args: Any, **options: Any) -> CrossReference:
    with crossref() as run:
        torch.compile(function, **options)(*args)
    assert run.coverage.graphs == 1
    return run


def reasons(run: CrossReference) -> list[str]:
    return [s.reason for s in run.coverage.skipped if s.what.startswith("nodes of graph")]


@pytest.mark.parametrize(
    ("name", "kind", "dynamic"),
    [
        ("wrong_dtype", Kind.METADATA_MISMATCH, False),
        ("wrong_size", Kind.METADATA_MISMATCH, False),
        ("wrong_symbolic", Kind.METADATA_MISMATCH, True),
        ("wrong_alias", Kind.UNDECLARED_ALIAS, False),
        ("wrong_mutation", Kind.UNDECLARED_MUTATION, False),
        ("right", None, False),
        ("right", None, True),
    ],
)
def test_an_operator_that_was_fused_is_compared(lowered: Lower, name: str, kind: Kind | None, dynamic: bool) -> None:
    op, x = lowered(name), sample()
    run = watched(lambda x: op(x).sin(), x, dynamic=dynamic)
    assert torch.equal(x, sample())
    assert [f.kind for f in run.findings] == [kind] * (kind is not None)
    for finding in run.findings:
        assert finding.severity is Severity.ERROR
        assert finding.stage is Stage.POST_GRAD_PASSES
        assert finding.ops == (f"planted.{name}.default",)
        assert finding.nodes == (name,)
        assert finding.source[0].file == __file__
        assert finding.evidence["count"] == 1


def _pass(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.fx.Graph], None]:
    """A graph pass that says of `cos` what `change` makes of the truth."""

    def rewrite(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.cos.default:
                node.meta["val"] = change(node.meta["val"])

    return rewrite


def _taller(t: torch.Tensor) -> torch.Tensor:
    return t.new_empty([t.shape[0] + 1, t.shape[1]])


@pytest.mark.parametrize(
    ("change", "field", "dynamic"),
    [
        (lambda t: t.double(), "dtype", False),
        (_taller, "size", False),
        (_taller, "size", True),
        (lambda t: t.new_empty([t.numel()]), "size", False),
        (lambda t: t.clone(), None, True),
        (lambda t: t.t().contiguous().t(), None, False),  # Inductor lays it out anew.
    ],
)
def test_what_a_pass_says_of_a_node_is_compared(
    change: Callable[[torch.Tensor], torch.Tensor], field: str | None, dynamic: bool
) -> None:
    from torch._inductor import config

    with config.patch(post_grad_custom_post_pass=_pass(change)):
        run = watched(lambda x: x.cos().sin().exp(), sample(), dynamic=dynamic)
    assert [[d["field"] for d in f.evidence["differences"]] for f in run.findings] == [[field]] * (field is not None)
    for finding in run.findings:
        assert finding.kind is Kind.METADATA_MISMATCH
        assert finding.severity is Severity.WARNING  # Inductor generates code from what it knows of `cos` itself.
        assert finding.stage is Stage.POST_GRAD_PASSES
        assert finding.ops == ("aten.cos.default",)
        assert finding.nodes == ("cos",)
        assert finding.source[0].file == __file__
        assert finding.evidence["against"] == "graph"
        assert finding.evidence["call"].startswith("torch.ops.aten.cos.default(")
        assert "pass" in finding.evidence["fix"]


def test_a_node_for_a_device_that_it_is_not_on_is_found_where_its_operator_is_called() -> None:
    from torch._inductor import config

    with config.patch(post_grad_custom_post_pass=_pass(lambda t: t.new_empty(t.shape, device="meta"))):
        (finding,) = watched(lambda x: x.cos().sin().exp(), sample()).findings
    assert [d["field"] for d in finding.evidence["differences"]] == ["device"]
    assert (finding.severity, finding.stage, finding.nodes) == (Severity.ERROR, Stage.KERNEL, ("cos",))


def test_the_program_and_its_random_numbers_are_those_of_a_run_without_it() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y[1:] = x[1:] + torch.rand_like(x[1:])
        return torch.nn.functional.dropout(x + y, 0.5).cumsum(0)

    def compiled() -> list[list[Any]]:
        torch._dynamo.reset()
        torch.manual_seed(5)
        x, y = sample(), sample() + 1
        result = torch.compile(program)(x, y)
        return [t.tolist() for t in (x, y, result, torch.get_rng_state())]

    plain = compiled()
    with crossref() as run:
        assert compiled() == plain
    assert not run.findings
    assert any("draws random numbers" in reason for reason in reasons(run))


def test_a_graph_is_run_once(lowered: Lower, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    original = nodes.NodeWalk.run

    def run_counted(walk: nodes.NodeWalk, inputs: Iterable[Any]) -> bool:
        runs.append("call")
        return original(walk, inputs)

    monkeypatch.setattr(nodes.NodeWalk, "run", run_counted)
    op = lowered("right")
    with crossref(calls=None) as run:
        compiled = torch.compile(lambda x: op(x) + 1)
        for _ in range(3):
            compiled(sample())
    assert len(runs) == run.coverage.graphs == 1


def test_the_backward_and_the_subgraphs_are_run_too() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,)).square().sum()

    with crossref() as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(program)(sample())
        torch.compile(lambda x: (x.exp() * 2).sum())(sample().requires_grad_()).backward()
    assert not run.findings
    assert any("cond: has subgraphs" in reason for reason in reasons(run))
    assert run.coverage.ops_checked >= 6


def test_an_operator_that_fails_is_skipped(lowered: Lower, monkeypatch: pytest.MonkeyPatch) -> None:
    op = lowered("right")

    def fail(*_: Any) -> Any:
        raise ValueError("not here")

    monkeypatch.setattr(nodes.NodeWalk, "_watched", fail)
    run = watched(lambda x: op(x).sin(), sample())
    assert not run.findings
    assert reasons(run) == ["right: failed: ValueError: not here"]


def test_what_a_kernel_never_makes_in_memory_is_not_made_here_if_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_MOST_BYTES", 1 << 20)
    x = torch.ones(1024)
    run = watched(lambda x: (x[:, None] * x[None, :]).sum(1).sin(), x)
    assert not run.findings
    (reason,) = reasons(run)
    assert reason == "mul: its result would have more than 1 MiB"


def test_fail_fast_raises_at_the_node(lowered: Lower) -> None:
    op = lowered("wrong_dtype")
    with crossref(fail_fast=True) as run, pytest.raises(torchsan.FindingsError, match="wrong_dtype"):
        torch.compile(lambda x: op(x).sin())(sample())
    assert len(run.findings) == 1
