"""What is known of the nodes of a graph without running it."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx

from torchsan.graphs.nodes import computed_by, graph_nodes, in_words, names_of, operator_name, source_lines, unnamed
from torchsan.records import Direction, GraphId, GraphRef
from torchsan.torch_internals import LoweredGraph

TRACE = f'''  File "/home/ada/model.py", line 7, in forward
    y = x
  File "{torch.__file__}", line 1, in relu
    return torch.relu(x)
'''


def module() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3)
    y = graph.call_function(torch.ops.aten.relu.default, (x,))
    y.meta |= {"stack_trace": TRACE, "nn_module_stack": {"a": ("L['self']._modules['layers']['0']", torch.nn.ReLU)}}
    graph.output((y,))
    return torch.fx.GraphModule({}, graph)


def test_operators_and_the_users_lines() -> None:
    x, y, _ = module().graph.nodes
    assert (operator_name(x), operator_name(y)) == (None, "aten.relu.default")
    (line,) = source_lines([x, y, y])
    assert (line.file, line.line, line.code, line.module) == ("/home/ada/model.py", 7, "y = x", "layers.0")


@pytest.mark.parametrize("way", ["G['policy'].body.1", "L['policy']._modules['body'][1]"])
def test_a_module_that_is_a_variable_is_called_as_the_variable_is(way: str) -> None:
    _, y, _ = module().graph.nodes
    y.meta["nn_module_stack"] = {"a": (way, torch.nn.ReLU)}
    assert [line.module for line in source_lines([y])] == ["policy.body.1"]


def test_without_a_trace_the_module_is_the_line() -> None:
    _, y, _ = module().graph.nodes
    del y.meta["stack_trace"]
    (line,) = source_lines([y])
    assert line.code == "ReLU.forward"


def test_a_finding_is_named_by_what_computes_its_nodes_and_by_the_nearest_line() -> None:
    graph = module().graph
    _, y, output = graph.nodes
    with graph.inserting_before(output):
        both = graph.call_function(torch.ops.aten.sort.default, (y,))
        order = graph.call_function(operator.getitem, (both, 1))
        order.meta["original_aten"] = torch.ops.aten.argsort.default
    names = names_of([order])
    assert (names["nodes"], names["ops"]) == (("getitem",), ("aten.sort.default",))
    assert [line.line for line in names["source"]] == [7]
    assert names_of([order], decomposed=True)["ops"] == ("aten.sort.default", "aten.argsort.default")
    assert unnamed(names) == {}
    assert (computed_by(order), computed_by(y)) == (both, y)
    assert (in_words(y), in_words(order)) == ("the relu_default", "result 1 of the sort_default")
    del y.meta["stack_trace"], y.meta["nn_module_stack"]
    assert "no line of the program" in unnamed(names_of([order]))["unnamed"]
    assert "no graph" in unnamed(names_of([]))["unnamed"]


def test_the_nodes_of_a_graph_share_their_lines() -> None:
    lowered = LoweredGraph(function="call", module=module(), inputs=("x",), buffers=())
    found = graph_nodes(GraphRef(id=GraphId(0), direction=Direction.FORWARD), [lowered], {})
    assert [(n.name, n.op, n.inputs, n.type, n.source) for n in found.nodes] == [
        ("x", "placeholder", (), "float32[2, 3]", None),
        ("relu_default", "aten.relu.default", ("x",), "", 0),
        ("output", "output", ("relu_default",), "", None),
    ]
    assert [s.line for s in found.sources] == [7]
