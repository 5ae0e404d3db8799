"""Which nodes of two graphs stand for each other."""

from __future__ import annotations

from tests.diff.made_up import TEXT
from torchsan.diff.align import Graph, pair_nodes
from torchsan.graphs.printed import FxGraph, parse_graph
from torchsan.records import Direction, GraphId, GraphRecord


def changed(*changes: tuple[str, str]) -> FxGraph:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_graph(text)


def test_the_same_graph_is_paired_node_by_node() -> None:
    pairs = pair_nodes(parse_graph(TEXT), parse_graph(TEXT))
    assert all(a == b for a, b in pairs.pairs.items())
    assert pairs.same == {"arg0_1", "arg1_1", "mm", "mul", "relu", "sum_1"}


RENAMED = changed(("mul:", "mul_9:"), ("default(mul)", "default(mul_9)"), ("relu:", "mul:"), ("(relu,", "(mul,"))


def test_names_do_not_matter() -> None:
    pairs = pair_nodes(parse_graph(TEXT), RENAMED)
    assert pairs.pairs["mul"] == "mul_9"
    assert pairs.pairs["relu"] == "mul"


def test_what_replaces_an_operator_stands_for_it() -> None:
    tanh = changed(("torch.ops.aten.relu.default(mul)", "torch.ops.aten.tanh.default(mul)"))
    pairs = pair_nodes(parse_graph(TEXT), tanh)
    assert pairs.pairs["relu"] == "relu"
    assert pairs.pairs["sum_1"] == "sum_1"
    assert pairs.same == {"arg0_1", "arg1_1", "mm", "mul"}


def test_an_operator_more_is_nobodys_partner() -> None:
    more = changed(
        (
            '        relu: "f32[4, 8]" = torch.ops.aten.relu.default(mul)',
            '        abs_1: "f32[4, 8]" = torch.ops.aten.abs.default(mul)\n'
            '        relu: "f32[4, 8]" = torch.ops.aten.relu.default(abs_1)',
        )
    )
    pairs = pair_nodes(parse_graph(TEXT), more)
    assert "abs_1" not in pairs.pairs.values()
    assert pairs.pairs["relu"] == "relu"
    assert "relu" not in pairs.same


def test_an_input_more_leaves_the_others_paired() -> None:
    more = changed(("self, arg0_1", 'self, bias: "f32[3]", arg0_1'))
    assert pair_nodes(parse_graph(TEXT), more).pairs["arg1_1"] == "arg1_1"


LAYERS = 'class G(torch.nn.Module):\n    def forward(self, x0: "f32[4]"):\n'


def layers(n: int, op: str) -> FxGraph:
    """Blocks of two lines each, one of which is decomposed by `op`."""
    lines = [LAYERS]
    for i in range(n):
        lines.append("        # File: /m.py:1 in forward, code: x = self.norm(x)\n")
        lines.append(f'        n{i}: "f32[4]" = torch.ops.aten.{op}.default(x{i})\n')
        lines.append("        # File: /m.py:2 in forward, code: x = self.linear(x)\n")
        lines.append(f'        x{i + 1}: "f32[4]" = torch.ops.aten.exp.default(n{i})\n')
    return parse_graph("".join(lines) + f"        return (x{n},)\n")


def test_layers_between_changed_ones_are_paired_in_order() -> None:
    pairs = pair_nodes(layers(20, "sin"), layers(20, "cos"))
    assert all(pairs.pairs[f"x{i}"] == f"x{i}" for i in range(21))
    assert all(pairs.pairs[f"n{i}"] == f"n{i}" for i in range(20))


def test_what_a_backward_is_given_is_paired_as_the_forward_computed_it() -> None:
    forward = pair_nodes(parse_graph(TEXT), changed(("mul:", "mul_9:"), ("default(mul)", "default(mul_9)")))
    a = parse_graph(
        'class G(torch.nn.Module):\n    def forward(self, mul: "f32[4]", relu: "f32[4]"):\n        return (mul,)\n'
    )
    b = parse_graph(
        'class G(torch.nn.Module):\n    def forward(self, relu: "f32[4]", mul_9: "f32[4]"):\n        return (mul_9,)\n'
    )
    assert pair_nodes(a, b, forward).pairs == {"mul": "mul_9", "relu": "relu"}


def test_inputs_are_called_as_the_user_calls_them() -> None:
    fx = changed()
    record = GraphRecord(id=GraphId(0), direction=Direction.FORWARD, artifacts={})
    named = Graph(record=record, fx=fx, called={"arg0_1": "x", "arg1_1": "fc.weight"})
    assert named.text(fx.by_name["mm"]) == "mm = aten.mm.default(x, fc.weight)"
    assert Graph(record=record, fx=fx).text(fx.by_name["mm"]) == "mm = aten.mm.default(arg0_1, arg1_1)"
