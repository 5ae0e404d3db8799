"""A graph becomes data, goes through JSON, is validated, and computes the same again."""

from __future__ import annotations

import dataclasses
import json
import operator
from typing import Any

import pytest
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from torchsan.errors import RecordingError, UsageError
from torchsan.graphs.data import FUNCTIONS, Graph, Unrepresentable, without_probe
from torchsan.graphs.encode import describe_graph, encode_call, plain
from torchsan.graphs.rebuild import argument, find_operator, rebuild_graph
from torchsan.records import OperatorCall, decode, encode


def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest, where = x.max(0)
    return torch.softmax(largest.to(torch.float64), -1), where + 2


def described() -> Graph:
    module = make_fx(function)(torch.ones(3, 4))
    return decode(Graph, json.loads(json.dumps(encode(describe_graph(module.graph)))))


def test_what_was_described_computes_the_same() -> None:
    graph, x = described(), torch.randn(3, 4)
    again = rebuild_graph(graph, {})(x)
    assert all(torch.equal(a, b) for a, b in zip(again, function(x), strict=True))
    assert graph.kinds[graph.inputs[0]].shape == (3, 4)


def test_a_scalar_keeps_its_shape() -> None:
    module = make_fx(lambda x: x.sum())(torch.ones(3))
    nodes = list(rebuild_graph(describe_graph(module.graph), {}).graph.nodes)
    assert nodes[1].meta["val"].shape == ()


def changed(**fields: Any) -> Graph:
    return dataclasses.replace(described(), **fields)


EVIL = {
    "an operator that is code": changed(calls=(OperatorCall(name="a", op="os.system.default", args=("true",)),)),
    "a file": changed(calls=(OperatorCall(name="a", op="aten.from_file.default", args=("/etc/passwd",)),)),
    "a node that is not there": changed(calls=(OperatorCall(name="a", op="aten.sin.default", args=({"node": "b"},)),)),
    "an unknown mark": changed(calls=(OperatorCall(name="a", op="aten.sin.default", args=({"eval": "1"},)),)),
    "a name that is code": changed(inputs=("x = exit()",)),
    "a name twice": changed(inputs=("x", "x")),
    "an output from nowhere": changed(outputs=("nobody",)),
    "a constant from nowhere": changed(attributes={"c": "constant"}),
}


@pytest.mark.parametrize("graph", EVIL.values(), ids=EVIL)
def test_what_nobody_describes_is_refused(graph: Graph) -> None:
    with pytest.raises(RecordingError):
        rebuild_graph(graph, {})


VALUES = [
    None, True, 3, 0.5, "text", [1, [2, 3]], torch.float16, torch.device("cpu"), torch.strided, torch.channels_last,
    float("inf"), complex(1, float("-inf")),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_plain_values_stand_for_what_they_were_made_of(value: Any) -> None:
    through = json.loads(json.dumps(plain(value, lambda n: n), allow_nan=False))
    assert argument(through, {}) == value


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(Unrepresentable, match="Generator"):
        plain(torch.Generator(), lambda n: n)
    with pytest.raises(Unrepresentable, match="no operator"):
        encode_call("a", torch.relu, (), {}, lambda n: n, lambda n: n)
    with pytest.raises(UsageError, match="no dtype"):
        argument({"dtype": "float31"}, {})


def test_operators_are_found_by_name_and_only_those_of_the_dispatcher() -> None:
    assert find_operator("aten.sin.default") is torch.ops.aten.sin.default
    assert find_operator("getitem") is operator.getitem
    assert all(find_operator(name) is function for name, function in FUNCTIONS.items())
    for name in ("aten.save.default", "os.system", "builtins.exec.default", ""):
        with pytest.raises(RecordingError, match="no operator"):
            find_operator(name)


def test_a_probe_is_a_copy_to_others() -> None:
    call = OperatorCall(name="p", op="torchsan.probe.default", args=({"node": "x"}, "name"))
    assert without_probe(call) == OperatorCall(name="p", op="aten.clone.default", args=({"node": "x"},))


def test_a_users_triton_kernel_is_not_kept() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    with pytest.raises(Unrepresentable, match="a Triton kernel of your own, whose code no recording keeps"):
        encode_call("k", triton_kernel_wrapper_mutation, (), {"kwargs": {}}, lambda n: n, lambda n: n)
