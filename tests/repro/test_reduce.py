"""The minimiser, with oracles that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.repro.made_up import call, exhibit, given, node
from torchsan.records import Exhibit, Given
from torchsan.repro.reduce import cut, flattened, leading_ones, only_output, reduce, resized, retyped, shrunk
from torchsan.repro.trial_server import Stopped
from torchsan.repro.values import Tensors
from torchsan.store import Store

VALUES = {n: given(n, 4, 8, stored=f"node/{n}") for n in ("sin", "add", "mul")}


class Oracle:
    """Stands in for trials: a candidate shows the finding if `rule` says so."""

    def __init__(self, rule: Callable[[Exhibit], bool], most: int = 1000) -> None:
        self.asked = 0
        self._rule, self._most = rule, most

    def first(self, candidates: Iterable[Exhibit]) -> Exhibit | None:
        for candidate in candidates:
            self.asked += 1
            if self.asked > self._most:
                raise Stopped("enough")
            if self._rule(candidate):
                return candidate
        return None


def ops(e: Exhibit) -> list[str]:
    return [n.op.split(".")[1] for n in e.nodes]


def chain(length: int) -> tuple[Exhibit, dict[str, Given]]:
    nodes = [call("n0", "aten.sin.default", node("x"))]
    nodes += [call(f"n{i}", "aten.cos.default", node(f"n{i - 1}")) for i in range(1, length)]
    values = {n.name: given(n.name, 4, 8, stored=f"node/{n.name}") for n in nodes}
    return exhibit(nodes=tuple(nodes), inputs=(given("x", 4, 8),), outputs=(f"n{length - 1}",)), values


@pytest.fixture
def tensors(tmp_path: Path) -> Tensors:
    store = Store(tmp_path / "tensors")
    torch.manual_seed(0)
    store.put("x", torch.randn(4, 8))
    for name in VALUES:
        store.put(f"node/{name}", torch.randn(4, 8))
    return Tensors(store)


def minimal(e: Exhibit, values: Any, tensors: Tensors, rule: Callable[[Exhibit], bool]) -> Exhibit:
    found = reduce(e, values, tensors, Oracle(rule).first, lambda _: None)
    assert found is not None
    assert rule(found)
    return found


def test_a_cut_gets_what_it_needs_as_inputs() -> None:
    found = cut(exhibit(), {"add"}, VALUES)
    assert ops(found) == ["add"]
    assert [(g.name, g.stored) for g in found.inputs] == [("sin", "node/sin")]
    assert found.outputs == ("add",)


def test_a_node_whose_value_nobody_knows_stays() -> None:
    assert ops(cut(exhibit(), {"add"}, {})) == ["sin", "add"]


def test_a_cut_without_the_outputs_returns_what_nobody_uses() -> None:
    assert cut(exhibit(), {"sin"}, VALUES).outputs == ("sin",)
    assert cut(exhibit(), {"sin", "add"}, VALUES).outputs == ("add",)
    assert cut(exhibit(outputs=("mul", "x")), set(), VALUES).outputs == ("x",)


def test_earlier_calls_go_where_their_values_are_not_known() -> None:
    e = exhibit(earlier=(exhibit().inputs,))
    assert [g.name for g in cut(e, {"sin", "add"}, VALUES).earlier[0]] == ["x"]
    assert cut(e, {"add"}, VALUES).earlier == ()


def test_one_output_takes_the_nodes_that_it_needs() -> None:
    found = only_output(exhibit(outputs=("mul", "sin", "x")), "sin")
    assert (ops(found), found.outputs, [g.name for g in found.inputs]) == (["sin"], ("sin",), ["x"])
    found = only_output(exhibit(outputs=("mul", "x")), "x")
    assert (ops(found), found.outputs, [g.name for g in found.inputs]) == ([], ("x",), ["x"])


def test_one_wrong_operator_is_found_alone(tensors: Tensors) -> None:
    found = minimal(exhibit(), VALUES, tensors, lambda e: "add" in ops(e))
    assert ops(found) == ["add"]
    assert found.inputs[0].size == ()


def test_two_operators_that_are_wrong_together_stay_together(tensors: Tensors) -> None:
    found = minimal(exhibit(), VALUES, tensors, lambda e: {"sin", "mul"} <= set(ops(e)))
    assert ops(found) == ["sin", "mul"]


def test_a_long_chain_takes_few_trials() -> None:
    e, values = chain(64)
    oracle = Oracle(lambda c: "n40" in {n.name for n in c.nodes})
    found = reduce(e, values, _Nothing(), oracle.first, lambda _: None)  # type: ignore[arg-type]  # it has no values
    assert found is not None
    assert [n.name for n in found.nodes] == ["n40"]
    assert oracle.asked < 64


class _Nothing:
    def memory(self, given: Given) -> None:
        return None


def test_recorded_values_are_kept_where_they_are_needed(tensors: Tensors) -> None:
    e = exhibit(nodes=exhibit().nodes[:1], inputs=(given("x", 4, 8, stored="x"),), outputs=("sin",))
    free = minimal(e, {}, tensors, lambda e: True)
    assert free.inputs[0].fill == "randn 0"
    bound = minimal(e, {}, tensors, lambda e: e.inputs[0].fill is None)
    assert bound.inputs[0].stored == "x"


def test_sizes_shrink_together_with_the_lists_of_sizes_among_the_arguments() -> None:
    e = exhibit(
        nodes=(call("view", "aten.view.default", node("x"), [32, 4]), call("sin", "aten.sin.default", node("view"))),
        inputs=(given("x", 4, 32),),
        outputs=("sin",),
    )
    found = resized(e, 32, 2)
    assert found.inputs[0].size == (4, 2)
    assert found.inputs[0].stride == (2, 1)
    assert found.nodes[0].args[1] == [2, 4]


def test_a_permuted_layout_stays_permuted_when_it_shrinks() -> None:
    e = exhibit(inputs=(given("x", 4, 8, stride=(1, 4)), given("y", 4, 8)))
    assert resized(e, 8, 2).inputs[0].stride == (1, 4)
    assert resized(e, 4, 2).inputs[0].stride == (1, 2)


def test_settings_and_earlier_calls_go_if_they_are_not_needed(tensors: Tensors) -> None:
    inputs = exhibit().inputs
    e = exhibit(config={"a": True, "b": True}, earlier=(inputs,), dynamic=True)
    assert minimal(e, VALUES, tensors, lambda c: True).config == {}
    found = minimal(e, VALUES, tensors, lambda c: "b" in c.config and bool(c.earlier))
    assert (found.config, len(found.earlier), found.dynamic) == ({"b": True}, 1, False)


def test_nothing_to_reduce_where_not_even_the_whole_shows_it(tensors: Tensors) -> None:
    assert reduce(exhibit(), VALUES, tensors, Oracle(lambda e: False).first, lambda _: None) is None


def test_when_the_time_is_up_the_best_so_far_is_known(tensors: Tensors) -> None:
    best: list[Exhibit] = []
    with pytest.raises(Stopped):
        reduce(exhibit(), VALUES, tensors, Oracle(lambda e: "sin" in ops(e), most=6).first, best.append)
    assert ops(best[-1]) == ["sin"]


def test_dimensions_of_length_one_in_front_go() -> None:
    e = exhibit(
        nodes=(
            call("sum", "aten.sum.dim_IntList", node("x"), [2]),
            call("view", "aten.view.default", node("sum"), [1, 1, 4]),
        ),
        inputs=(given("x", 1, 1, 8),),
        outputs=("view",),
    )
    assert leading_ones(e) == 2
    as_they_are, shifted = (flattened(e, 2, shift=shift) for shift in (False, True))
    assert (as_they_are.inputs[0].size, as_they_are.nodes[0].args[1]) == ((8,), [2])
    assert (shifted.nodes[0].args[1], shifted.nodes[1].args[1]) == ([0], [4])
    assert leading_ones(exhibit(inputs=(given("x", 1, 2), given("y", 2, 1)))) == 0


def test_a_dtype_is_plain_unless_the_finding_needs_it(tensors: Tensors) -> None:
    e = exhibit(
        nodes=(call("to", "aten._to_copy.default", node("x"), dtype={"dtype": "bfloat16"}),),
        inputs=(given("x", 4, 8, dtype="bfloat16", fill="randn 0"),),
        outputs=("to",),
    )
    found = minimal(e, {}, tensors, lambda c: True)
    assert (found.inputs[0].dtype, found.nodes[0].kwargs) == ("float32", {"dtype": {"dtype": "float32"}})
    assert minimal(e, {}, tensors, lambda c: c.inputs[0].dtype == "bfloat16").nodes == e.nodes
    assert retyped(e, "float16", "float32") == e


def test_one_leap_is_often_enough(tensors: Tensors) -> None:
    e = exhibit(inputs=(given("x", 4, 8, stored="x"), given("y", 4, 8, stored="x")), suspects=("sin", "add"))
    oracle = Oracle(lambda c: "add" in ops(c))
    found = reduce(e, VALUES, tensors, oracle.first, lambda _: None)
    assert found is not None
    assert (ops(found), found.inputs[0].size) == (["add"], ())
    assert oracle.asked <= 4


def test_what_needs_some_length_leaps_to_that(tensors: Tensors) -> None:
    e = exhibit(nodes=exhibit().nodes[:1], inputs=(given("x", 64, 512),), outputs=("sin",))
    assert shrunk(e, 32).inputs[0].size == (32, 32)
    found = minimal(e, {}, tensors, lambda c: c.inputs[0].size[-1:] >= (16,))
    assert found.inputs[0].size == (16, 16)
