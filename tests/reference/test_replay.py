"""Parts of a graph run again: from known values, in each arithmetic, and without a trace."""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from typing import Any

import pytest
import torch
import torch.fx

from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.judge import Outcome, Unlike
from torchsan.reference.replay import Replayer

aten = torch.ops.aten


def constant(name: str) -> Any:
    raise Unavailable(name)


def graph(*calls: tuple[Any, ...]) -> list[torch.fx.Node]:
    """A placeholder `x`, and calls of operators on the nodes before them, which arguments name by position."""
    fx = torch.fx.Graph()
    nodes = [fx.placeholder("x")]
    nodes[0].meta["val"] = torch.empty(4)
    for target, *args in calls:
        nodes.append(fx.call_function(target, tuple(nodes[a[0]] if isinstance(a, list) else a for a in args)))
    return nodes


def replayer(known: dict[torch.fx.Node, Any], *effects: torch.fx.Node) -> Replayer:
    return Replayer(known, attribute=constant, symbols={}, effects=effects)


def test_a_node_is_computed_in_the_programs_dtypes_in_float64_and_with_other_last_bits() -> None:
    x, *_, result = graph((aten.sin.default, [0]), (aten.exp.default, [1]))
    value = torch.linspace(0.1, 1, 4)
    run = replayer({x: value}).run
    own = (Arithmetic.EAGER, Arithmetic.EXACT, Arithmetic.NUDGED)
    eager, exact, nudged = (run(result, arithmetic, seed=1) for arithmetic in own)
    assert torch.equal(eager, value.sin().exp())
    assert torch.equal(exact, value.double().sin().exp())
    assert nudged.dtype is torch.float32
    assert 0 < float((nudged - eager).abs().max()) < 1e-5
    assert torch.equal(nudged, run(result, Arithmetic.NUDGED, seed=1))
    rough = run(result, Arithmetic.ROUGH, seed=1)
    assert rough.dtype is torch.float64
    assert 0 < float((rough - exact).abs().max()) < 1e-6
    narrow = run(result, Arithmetic.BFLOAT16)
    assert torch.equal(narrow, narrow.bfloat16().float())


def test_what_looks_at_bits_is_computed_in_the_programs_dtypes_and_goes_on_in_float64() -> None:
    x, bits, _, _, result = graph(
        (aten.view.dtype, [0], torch.int32),
        (aten.add.Tensor, [1], 1),
        (aten.view.dtype, [2], torch.float32),
        (aten.mul.Tensor, [3], 3),
    )
    bits.meta["val"] = torch.empty(4, dtype=torch.int32)
    value = torch.rand(4)
    exact = replayer({x: value}).run(result, Arithmetic.EXACT)
    assert torch.equal(exact, (value.view(torch.int32) + 1).view(torch.float32).double() * 3)


def test_a_run_that_overwrites_copies_keeps_nothing_of_the_program() -> None:
    """Nothing in a cycle: until Python looks for those, the program's buffers would seem to be leaked."""
    x, _, copied = graph((aten.mul.Tensor, [0], 2), (aten.copy_.default, [0], [1]))
    value = torch.rand(4)
    alive = weakref.ref(value)
    gc.disable()
    try:
        replayer({x: value}, copied).run(copied, Arithmetic.EAGER)
        del value
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("arithmetic", list(Arithmetic))
def test_what_an_operator_on_lists_has_overwritten_is_its_result(arithmetic: Arithmetic) -> None:
    """It returns nothing, and Inductor has graphs that go on with its results."""
    x, added, _item, result = graph(
        (aten._foreach_add_.Scalar, 1), (operator.getitem, [1], 0), (aten.mul.Tensor, [2], 2)
    )
    added.args = ([x], 1)
    value = torch.rand(4)
    before = value.clone()
    found = replayer({x: value}).run(result, arithmetic)
    torch.testing.assert_close(found.float(), (before + 1) * 2, rtol=1e-2, atol=1e-2)
    assert torch.equal(value, before)


@pytest.mark.parametrize("arithmetic", list(Arithmetic))
def test_known_values_are_overwritten_in_copies_only(arithmetic: Arithmetic) -> None:
    x, _, copy = graph((aten.mul.Tensor, [0], 2), (aten.copy_.default, [0], [1]))
    value = torch.ones(4)
    result = replayer({x: value}, copy).run(x, arithmetic)
    torch.testing.assert_close(result.float(), torch.full((4,), 2.0))
    assert torch.equal(value, torch.ones(4))


def test_what_is_random_or_depends_on_an_unknown_value_is_unavailable() -> None:
    x, drawn = graph((aten.bernoulli.default, [0]))
    with pytest.raises(Unavailable, match="random numbers of its own"):
        replayer({x: torch.rand(4)}).run(drawn, Arithmetic.EAGER)
    _, result = graph((aten.sin.default, [0]))
    with pytest.raises(Unavailable, match="it needs x, which the kernel was not given"):
        replayer({}).run(result, Arithmetic.EAGER)


def test_a_compiled_result_is_judged_by_what_the_node_gives() -> None:
    x, result = graph((aten.sin.default, [0]))
    value = torch.linspace(0.1, 1, 4)
    judge = replayer({x: value}).judge
    assert judge(result, value.sin()).outcome is Outcome.RIGHT
    assert judge(result, value.cos()).outcome is Outcome.WRONG
    with pytest.raises(Unlike, match=r"it is float32\[2\], but float32\[4\]"):
        judge(result, value[:2])


def test_other_known_values_take_the_place_of_some() -> None:
    x, result = graph((aten.mul.Tensor, [0], 2))
    other = replayer({x: torch.ones(4)}).instead({x: torch.full((4,), 3.0)})
    assert other.run(result, Arithmetic.EAGER).tolist() == [6.0] * 4


def test_two_products_that_inductor_adds_up_in_one_are_computed_one_by_one() -> None:
    from torch._inductor.fx_passes.post_grad import mm_plus_mm

    # As the graph has it: a function of Inductor's, which takes no tensors, with what it matched bound to it.
    matched: Any = None
    target = functools.wraps(mm_plus_mm)(functools.partial(mm_plus_mm, matched))
    fx = torch.fx.Graph()
    x = fx.placeholder("x")
    result = fx.call_function(target, (), {f"mat{i}": x for i in (1, 2, 3, 4)})
    value = torch.randn(5, 5)
    run = replayer({x: value}).run
    assert torch.equal(run(result, Arithmetic.EAGER), value @ value + value @ value)
    assert run(result, Arithmetic.EXACT).dtype is torch.float64
    assert not torch.equal(run(result, Arithmetic.NUDGED, seed=1), run(result, Arithmetic.NUDGED, seed=2))


def test_another_function_of_inductors_is_not_guessed() -> None:
    from torch._inductor.fx_passes.post_grad import is_valid_mm_plus_mm

    x, result = graph((is_valid_mm_plus_mm, [0]))
    with pytest.raises(Unavailable, match="is_valid_mm_plus_mm is a function of Inductor's"):
        replayer({x: torch.ones(4)}).run(result, Arithmetic.EAGER)


def test_an_error_that_all_elements_share_is_seen_across_conversions() -> None:
    """Half precision is computed in float32 between two conversions, which have no gradient of their own."""
    convert = torch.ops.prims.convert_element_type.default
    calls = (convert, [0], torch.float32), (aten.tanh.default, [1]), (convert, [2], torch.bfloat16)
    x, wide, tanh, result = graph(*calls)
    value = torch.linspace(-2, 2, 512).bfloat16()
    dtypes = (torch.bfloat16, torch.float32, torch.float32, torch.bfloat16)
    for node, dtype in zip((x, wide, tanh, result), dtypes, strict=True):
        node.meta["val"] = torch.empty(512, dtype=dtype)
    judge = functools.partial(replayer({x: value}).judge, result, thorough=True)
    right, wrong = (judge((value.float().tanh() * (1 + error)).bfloat16()) for error in (0.0, 0.02))
    assert right.outcome is Outcome.RIGHT
    assert wrong.coherent is not None
    assert wrong.coherent.nodes == (tanh,)
    assert wrong.coherent.size == pytest.approx(0.02, rel=0.05)


def test_an_error_is_seen_behind_an_operator_without_gradient() -> None:
    x, whole, result = graph((aten.floor_divide.default, [0], 0.1), (aten.exp2.default, [1]))
    value = torch.linspace(-0.7, 0.7, 512)
    for node in (x, whole, result):
        node.meta["val"] = torch.empty(512)
    actual = (value // 0.1).exp2() * (1 + 2e-6)
    judgement = replayer({x: value}).judge(result, actual, thorough=True)
    assert judgement.coherent is not None
    assert result in judgement.coherent.nodes


def test_what_is_expected_is_computed_once_with_what_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    x, first, last = graph((aten.sin.default, [0]), (aten.exp.default, [1]))
    value = torch.linspace(0.1, 1, 4)
    replays = replayer({x: value})
    replays.expect([first, last])
    assert replays.judge(last, value.sin().exp()).outcome is Outcome.RIGHT
    monkeypatch.setattr(replays, "needed", None)  # Nothing is computed from here on.
    assert torch.equal(replays.run(first, Arithmetic.EAGER), value.sin())


def test_what_is_overwritten_further_on_is_not_taken_for_what_it_was() -> None:
    x, first, copy, last = graph((aten.sin.default, [0]), (aten.clone.default, [1]), (aten.exp_.default, [2]))
    value = torch.linspace(0.1, 1, 4)
    replays = replayer({x: value})
    replays.expect([first, copy, last])
    assert torch.equal(replays.run(last, Arithmetic.EAGER), value.sin().exp())
    assert torch.equal(replays.run(copy, Arithmetic.EAGER), value.sin())
