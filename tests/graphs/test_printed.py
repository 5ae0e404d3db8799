"""A graph is read from its text: nodes, lines, subgraphs, and each call as data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.diff.made_up import TEXT
from torchsan.graphs.data import Unrepresentable
from torchsan.graphs.printed import FxGraph, parse_graph, print_graph, try_parse
from torchsan.records import OperatorCall

SCHEMA_1 = Path(__file__).parents[1] / "data" / "recording-schema-1" / "artifacts" / "graph0-inference.fx.py"


def test_a_graph_is_read_from_its_text() -> None:
    graph = parse_graph(TEXT)
    assert graph.inputs == ("arg0_1", "arg1_1")
    assert graph.outputs == ("sum_1",)
    assert [n.name for n in graph.nodes] == ["arg0_1", "arg1_1", "mm", "mul", "relu", "sum_1"]
    mul = graph.by_name["mul"]
    assert (mul.op, mul.parents, mul.kind) == ("aten.mul.Tensor", ("mm",), "f32[4, 8]")
    assert mul.written == "torch.ops.aten.mul.Tensor(_, 0.5)"
    assert mul.source is not None
    assert (mul.source.line, mul.source.code) == (7, "h = (x @ w) * scale")


SUBGRAPH = """\
class <lambda>(torch.nn.Module):
    def forward(self, arg0_1: "Sym(s77)", arg1_1: "f32[s77]"):
        true_graph_0 = self.true_graph_0
        # No stacktrace found for following nodes
        mul: "Sym(2*s77)" = arg0_1 * 2
        cond = torch.ops.higher_order.cond(True, true_graph_0, true_graph_0, (arg1_1,));  true_graph_0 = None
        getitem: "f32[s77]" = cond[0];  cond = None
        full: "f32[2*s77]" = torch.ops.aten.full.default([mul], -inf, device = device(type='cpu'))
        return (getitem, full, None)

    class true_graph_0(torch.nn.Module):
        def forward(self, arg0_1: "f32[s77]"):
            sin: "f32[s77]" = torch.ops.aten.sin.default(arg0_1);  arg0_1 = None
            return (sin,)
"""


def test_symbols_and_subgraphs_are_read() -> None:
    graph = parse_graph(SUBGRAPH)
    assert graph.inner == {"sin"}
    assert graph.outputs == ("getitem", "full", None)
    assert [n.op for n in graph.nodes[2:]] == ["get_attr", "mult", "higher_order.cond", "getitem", "aten.full.default"]
    assert graph.by_name["full"].source is None


@pytest.mark.parametrize("text", ["", "x = 1", "class A(torch.nn.Module):\n    pass", "def forward(:"])
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        parse_graph(text)


def test_what_may_be_anything_is_none_if_it_is_no_graph() -> None:
    assert try_parse("x = " + "(" * 10_000) is None
    assert try_parse(TEXT) is not None


def test_each_node_knows_its_line() -> None:
    graph = parse_graph(SUBGRAPH)
    lines = SUBGRAPH.splitlines()
    assert "def forward" in lines[graph.line - 1]
    assert [n.name for n in graph.computed()][-1] == "sin", "subgraphs come last"
    assert all(lines[n.line - 1].lstrip().startswith(n.name) for n in graph.computed())


def test_a_recording_of_schema_1_has_a_graph() -> None:
    graph = parse_graph(SCHEMA_1.read_text())
    assert graph.by_name["div"].call() == OperatorCall(
        name="div", op="aten.div.Tensor", args=({"node": "convert_element_type"}, 255)
    )
    assert graph.by_name["convert_element_type"].call().args[1] == {"dtype": "float32"}


def one(expression: str) -> OperatorCall:
    text = f"class G(torch.nn.Module):\n    def forward(self, x, y):\n        z = {expression}\n        return (z,)\n"
    return parse_graph(text).by_name["z"].call()


def test_arguments_are_plain_values() -> None:
    call = one(
        "torch.ops.aten.full.default([2, -3, y], -inf, dtype = torch.float32, layout = torch.strided, "
        "device = device(type='cuda', index=0), memory_format = torch.channels_last)"
    )
    assert call.args == ([2, -3, {"node": "y"}], {"float": "-inf"})
    assert call.kwargs == {
        "dtype": {"dtype": "float32"},
        "layout": {"layout": "strided"},
        "device": {"device": "cpu"},
        "memory_format": {"memory_format": "channels_last"},
    }
    assert one("x[1]") == OperatorCall(name="z", op="getitem", args=({"node": "x"}, 1))
    assert one("x * 2") == OperatorCall(name="z", op="operator.mul", args=({"node": "x"}, 2))


@pytest.mark.parametrize(
    "expression", ["self.constant", "x @ y", "f(lambda: 1)", "f(os.system)", "f(-x)", "f(b'')", "f(g(1))"]
)
def test_what_is_no_plain_value_is_refused(expression: str) -> None:
    with pytest.raises(Unrepresentable):
        one(expression)


def test_what_is_printed_is_read_back() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum(0)

    read: FxGraph = parse_graph(print_graph(torch.fx.symbolic_trace(function)))
    assert read.inputs == ("x",)
    assert read.outputs == ("sum_1",)
