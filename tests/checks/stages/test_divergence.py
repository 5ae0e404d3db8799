"""The first value of one run that is nowhere in the other names the operator, in a graph and in a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._inductor.decomposition
import torch.fx

import torchsan
from torchsan.checks.stages.divergence import (
    SeenOperators,
    Signatures,
    first_divergence,
    first_other_operator,
    where_they_part,
)

aten = torch.ops.aten


def graph_of(*steps: tuple[Any, str]) -> torch.fx.Graph:
    """One operator after the other, each from its own line or of its own operator."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for target, origin in steps:
        node = graph.call_function(target, (node,))
        node.meta |= {"stack_trace": origin, "original_aten": origin}
    return graph


def signatures(graph: torch.fx.Graph, x: torch.Tensor) -> Signatures:
    found, value = Signatures(), x
    for node in graph.nodes:
        if node.op == "call_function":
            value = node.target(value)
            found.note(node, value)
    return found


def test_the_first_node_with_another_value_and_what_it_was_decomposed_into_are_found() -> None:
    x = torch.randn(5, dtype=torch.float64)
    upper = signatures(graph_of((aten.sin.default, "1"), (aten.exp.default, "2"), (aten.cos.default, "3")), x)
    lower = signatures(
        graph_of((aten.sin.default, "1"), (aten.tanh.default, "2"), (aten.neg.default, "2"), (aten.cos.default, "3")), x
    )
    assert [n.target for n in first_divergence(upper, lower)] == [aten.tanh.default, aten.neg.default]
    assert first_divergence(upper, upper) == []


def test_an_operator_that_gives_what_no_node_gives_is_found_by_what_its_nodes_were() -> None:
    x = torch.randn(5, dtype=torch.float64)
    with SeenOperators() as seen:
        x.sin().exp().cos()
    steps = [(aten.sin.default, "aten.sin.default"), (aten.tanh.default, "aten.exp.default")]
    lower = signatures(graph_of(*steps, (aten.cos.default, "aten.cos.default")), x)
    assert [n.target for n in first_other_operator(seen.calls, lower)] == [aten.tanh.default]
    assert [str(func) for func, _ in seen.calls] == ["aten.sin.default", "aten.exp.default", "aten.cos.default"]
    assert first_other_operator(seen.calls[:1], lower) == []


def several(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.stack(
        [
            a.tanh().sum(),
            b.sigmoid().sum(),
            c.exp().cos().sum(),
        ]
    )


def test_a_smaller_difference_counts_where_there_is_no_larger_one() -> None:
    x = torch.randn(5, dtype=torch.float64)
    upper = signatures(graph_of((aten.sin.default, "1"), (aten.exp.default, "2")), x)
    graph = graph_of((aten.sin.default, "1"), (lambda t: t.exp() * (1 + 1e-11), "2"))
    assert where_they_part(upper, SeenOperators(), signatures(graph, x)) == [list(graph.nodes)[-1]]
    assert where_they_part(upper, SeenOperators(), upper) == []


@pytest.mark.parametrize(
    ("wrong", "op", "line"),
    [
        (lambda g, o: g * o * (1 - o * 0.99), aten.sigmoid_backward.default, "b.sigmoid"),
        (lambda g, o: g * (1 - o * o * 0.99), aten.tanh_backward.default, "a.tanh"),
    ],
)
def test_a_wrong_decomposition_in_one_branch_of_several_is_named(
    wrong: Callable[..., torch.Tensor], op: Any, line: str
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    table = torch._inductor.decomposition.decompositions
    with torchsan.session(check="stages") as run, patch.dict(table, {op: wrong}):
        torch._inductor.decomposition.fast_random_decomps.cache_clear()
        torch.compile(several)(*inputs).sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    torch._inductor.decomposition.fast_random_decomps.cache_clear()
    (finding,) = run.findings
    assert (finding.kind, finding.stage) == ("wrong-values", "aot")
    assert str(op) in finding.ops
    assert len(finding.nodes) <= 6
    assert [line in s.code for s in finding.source] == [True]
