"""What rounding could have given is right, what it could not is wrong, whatever the dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.judge import (
    Outcome,
    Unlike,
    agrees,
    differ_in_float64,
    is_another,
    judge,
    same_in_float64,
    settle,
)
from torchsan.reference.replay import Replayer

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def outcome(actual: torch.Tensor, eager: torch.Tensor, *nudged: torch.Tensor) -> Outcome:
    wide = torch.complex128 if eager.is_complex() else torch.float64 if eager.is_floating_point() else eager.dtype
    return judge(actual, eager, eager.to(wide), nudged).outcome


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_last_place_does_not_matter(dtype: torch.dtype) -> None:
    eager = torch.linspace(1, 2, 50).to(dtype)
    actual = eager * (1 + torch.finfo(dtype).eps)
    assert agrees(actual, eager)
    assert outcome(actual, eager) is Outcome.RIGHT


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_factor_matters(dtype: torch.dtype) -> None:
    eager = torch.linspace(-2, 2, 50).to(dtype)
    actual = (eager * 1.25).to(dtype)
    assert not agrees(actual, eager)
    assert outcome(actual, eager) is Outcome.WRONG


def test_a_factor_of_a_thousandth_is_wrong_and_not_imprecise() -> None:
    eager = torch.randn(1000)
    assert outcome(eager * 1.001, eager) is Outcome.WRONG


def test_noise_both_ways_is_wrong_unless_something_explains_it() -> None:
    eager = torch.rand(1000) + 1
    noise = 1 + (torch.rand(1000) - 0.5) * 2e-4
    assert outcome(eager * noise, eager) is Outcome.WRONG


@pytest.mark.parametrize("arithmetic", [Arithmetic.BFLOAT16, Arithmetic.FLOAT16, Arithmetic.TF32])
def test_what_a_narrower_dtype_gives_is_imprecise(arithmetic: Arithmetic) -> None:
    graph = torch.fx.symbolic_trace(lambda x, y: torch.ops.aten.sin.default(torch.ops.aten.mul.Tensor(x, y)))
    x, y, sin = (n for n in graph.graph.nodes if n.name in ("x", "y", "sin_default"))
    known = {x: torch.randn(1000), y: torch.randn(1000)}
    replayer = Replayer(known, attribute=lambda name: None, symbols={})
    actual = replayer.run(sin, arithmetic)
    judgement = replayer.judge(sin, actual)
    assert judgement.outcome is Outcome.IMPRECISE
    # TF32 has as many bits as float16, and differs from it in range only.
    assert judgement.explained in (arithmetic, Arithmetic.FLOAT16 if arithmetic is Arithmetic.TF32 else arithmetic)
    assert replayer.judge(sin, actual + 1e-3).outcome is Outcome.WRONG


def test_no_arithmetic_explains_another_small_whole_number() -> None:
    """As of 1 // 0.1, which is 9, and 10 where the quotient is rounded first (pytorch#197895)."""
    target = torch.ops.aten.div.Tensor_mode
    graph = torch.fx.symbolic_trace(lambda x, y: target(x, y, rounding_mode="floor"))
    x, y, div = (n for n in graph.graph.nodes if n.op != "output")
    known = {x: torch.tensor([1.0, 0.5, 6.0]), y: torch.tensor([0.1, 0.1, 0.2])}
    replayer = Replayer(known, attribute=lambda name: None, symbols={})
    assert replayer.judge(div, torch.tensor([10.0, 5.0, 30.0])).outcome is Outcome.WRONG
    assert replayer.judge(div, torch.tensor([9.0, 4.0, 29.0])).outcome is Outcome.RIGHT


def test_a_formula_explains_its_function_also_after_another_that_has_one() -> None:
    """`tanh` is computed well, and `atanh` of it by the formula, which loses digits of small numbers."""
    aten = torch.ops.aten
    graph = torch.fx.symbolic_trace(lambda x: aten.atanh.default(aten.tanh.default(x)))
    x, atanh = (n for n in graph.graph.nodes if n.name in ("x", "atanh_default"))
    given = torch.randn(500, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 0, 500)
    replayer = Replayer({x: given}, attribute=lambda name: None, symbols={})
    t = given.tanh()
    judgement = replayer.judge(atanh, ((1 + t) / (1 - t)).log() / 2)
    assert (judgement.outcome, judgement.explained) == (Outcome.IMPRECISE, Arithmetic.TEXTBOOK)
    assert replayer.judge(atanh, given * 1.001).outcome is Outcome.WRONG


@pytest.mark.parametrize("name", ["addcmul", "alpha"])
def test_the_product_inside_of_an_operator_may_be_rounded_or_not(name: str) -> None:
    """In float64 there is no better reference: where the sum cancels, a fused multiply-add shows."""
    aten = torch.ops.aten
    functions = {
        "addcmul": lambda x, y: aten.addcmul.default(x, y, y, value=0.7),
        "alpha": lambda x, y: aten.add.Tensor(x, y, alpha=0.7),
    }
    graph = torch.fx.symbolic_trace(functions[name])
    x, y, *_, result = (n for n in graph.graph.nodes if n.op != "output")
    second = torch.rand(200, dtype=torch.float64) + 1
    product = 0.7 * (second * second if name == "addcmul" else second)
    first = -product * (1 + 1e-9)
    replayer = Replayer({x: first, y: second}, attribute=lambda name: None, symbols={})
    actual = first + product * (1 + torch.finfo(torch.float64).eps * (torch.rand(200, dtype=torch.float64) - 0.5))
    assert replayer.judge(result, actual).outcome is Outcome.RIGHT
    assert replayer.judge(result, actual * (1 + 1e-4)).outcome is Outcome.WRONG


def test_whole_numbers_share_no_error() -> None:
    """A choice that flips with the last bit is judged as it was, also where shared errors are looked for."""
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.argmax.default(torch.ops.aten.sin.default(x), -1))
    x, argmax = (n for n in graph.graph.nodes if n.name in ("x", "argmax_default"))
    replayer = Replayer({x: torch.randn(40, 8)}, attribute=lambda name: None, symbols={})
    right = replayer.run(argmax, Arithmetic.EAGER)
    assert replayer.judge(argmax, right, thorough=True).outcome is Outcome.RIGHT
    assert replayer.judge(argmax, (right + 1) % 8, thorough=True).outcome is Outcome.WRONG


def test_nothing_explains_a_number_where_there_is_none() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.log.default(x))
    x, log = (n for n in graph.graph.nodes if n.name in ("x", "log_default"))
    replayer = Replayer({x: -torch.ones(1)}, attribute=lambda name: None, symbols={})
    judgement = replayer.judge(log, torch.zeros(1))
    assert (judgement.outcome, judgement.explained) == (Outcome.WRONG, None)


def test_what_is_not_rounded_must_be_the_same() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.relu.default(torch.ops.aten.neg.default(x)))
    x, relu = (n for n in graph.graph.nodes if n.name in ("x", "relu_default"))
    replayer = Replayer({x: torch.randn(100)}, attribute=lambda name: None, symbols={})
    right = replayer.run(relu, Arithmetic.EAGER)
    assert replayer.judge(relu, right).outcome is Outcome.RIGHT
    assert replayer.judge(relu, torch.nextafter(right, right + 1)).outcome is Outcome.WRONG


def test_what_nudged_replays_reach_is_right() -> None:
    eager = torch.zeros(100)
    noise = torch.randn(100) * 1e-6
    assert outcome(noise, eager) is not Outcome.RIGHT
    assert outcome(noise, eager, noise * 2, -noise) is Outcome.RIGHT


@pytest.mark.parametrize("share", [0.1, 0.9, 1.0])
def test_a_number_where_there_is_zero_is_wrong(share: float) -> None:
    eager = torch.randn(1000).where(torch.rand(1000) > share, torch.zeros(()))
    actual = eager.where(eager != 0, torch.ones(()))
    assert outcome(actual, eager) is Outcome.WRONG
    noise = eager.where(eager != 0, torch.full((), 1e-7))
    assert outcome(noise, eager) is not Outcome.WRONG


def test_nan_where_there_is_a_number_is_non_finite() -> None:
    eager = torch.ones(10)
    actual = eager.clone()
    actual[3] = float("nan")
    assert outcome(actual, eager) is Outcome.NON_FINITE


@pytest.mark.parametrize("actual", [1.0, -float("inf"), float("nan")])
def test_nothing_agrees_with_infinity_but_itself(actual: float) -> None:
    assert not agrees(torch.tensor([actual]), torch.tensor([float("inf")]))
    assert not agrees(torch.tensor([float("inf")]), torch.tensor([actual]))


def test_a_number_where_there_is_nan_is_wrong() -> None:
    eager = torch.tensor([1.0, float("nan")])
    assert outcome(torch.tensor([1.0, 0.0]), eager) is Outcome.WRONG


def test_infinities_and_nans_in_the_same_places_are_right() -> None:
    eager = torch.tensor([float("inf"), float("-inf"), float("nan"), 1.0])
    assert agrees(eager.clone(), eager)
    assert outcome(eager.clone(), eager) is Outcome.RIGHT


def test_an_infinity_of_the_other_sign_is_wrong() -> None:
    assert outcome(torch.tensor([float("-inf")]), torch.tensor([float("inf")])) is not Outcome.RIGHT


def test_what_overflows_its_dtype_may_be_infinite() -> None:
    eager = torch.tensor([65504.0], dtype=torch.float16)
    exact = torch.tensor([70000.0], dtype=torch.float64)
    assert judge(torch.tensor([float("inf")], dtype=torch.float16), eager, exact, ()).outcome is Outcome.RIGHT


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integers_are_compared_exactly(dtype: torch.dtype) -> None:
    eager = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert agrees(eager.clone(), eager)
    other = torch.tensor([1, 1, 1, 0]).to(dtype)
    assert not agrees(other, eager)
    assert outcome(other, eager) is Outcome.WRONG


def test_an_integer_that_random_last_bits_change_is_undecided() -> None:
    eager, other = torch.tensor([3, 5]), torch.tensor([4, 5])
    assert outcome(other, eager, torch.tensor([7, 5])) is Outcome.RIGHT


def test_integers_at_their_extremes_take_no_trip_through_float() -> None:
    eager = torch.tensor([2**63 - 1])
    assert outcome(eager - 1, eager) is Outcome.WRONG


def test_complex_numbers_are_measured_by_their_magnitude() -> None:
    eager = torch.tensor([1e3 + 1e-5j], dtype=torch.complex64)
    # The small part is off by half its size, which is nothing beside the large one.
    assert outcome(torch.tensor([1e3 + 1.5e-5j], dtype=torch.complex64), eager) is Outcome.RIGHT
    assert outcome(eager * 1.5, eager) is Outcome.WRONG


def test_where_eager_is_garbage_nobody_can_say() -> None:
    exact = torch.ones(20, dtype=torch.float64)
    eager = torch.full((20,), 1.5)
    assert judge(torch.full((20,), 100.0), eager, exact, ()).outcome is Outcome.UNDECIDED


def test_empty_tensors_agree() -> None:
    assert agrees(torch.empty(0, 3), torch.empty(0, 3))


def runs(asked: list[Arithmetic], *, float64: bool = True, noise: float = 0.0) -> Callable[[Arithmetic, int], Any]:
    """Computes three ones, with noise where it is asked for, and notes what was asked."""

    def run(arithmetic: Arithmetic, seed: int) -> torch.Tensor:
        asked.append(arithmetic)
        if arithmetic is Arithmetic.EXACT:
            if not float64:
                raise Unavailable("no float64")
            return torch.ones(3, dtype=torch.float64)
        return torch.ones(3) + (noise * seed if arithmetic is Arithmetic.NUDGED else 0.0)

    return run


def test_no_more_is_computed_than_it_takes() -> None:
    asked: list[Arithmetic] = []
    assert settle(runs(asked), torch.ones(3)).outcome is Outcome.RIGHT
    assert asked == [Arithmetic.EAGER]
    asked.clear()
    assert settle(runs(asked, noise=0.1), torch.full((3,), 1.5)).outcome is Outcome.RIGHT
    assert asked == [Arithmetic.EAGER, Arithmetic.EXACT, *[Arithmetic.NUDGED] * 2]
    asked.clear()
    assert settle(runs(asked), torch.full((3,), 1.5)).outcome is Outcome.WRONG
    assert asked.count(Arithmetic.NUDGED) == 16
    assert asked.count(Arithmetic.TEXTBOOK) == 1


def test_without_float64_eager_is_the_centre() -> None:
    found = settle(runs([], float64=False), torch.full((3,), 1.5))
    assert found.outcome is Outcome.WRONG
    assert found.centre is not None
    assert found.centre.tolist() == [1.0] * 3


def test_a_result_of_another_dtype_is_not_judged() -> None:
    with pytest.raises(Unlike):
        settle(runs([]), torch.ones(3, dtype=torch.float64))


def test_graphs_in_float64_are_the_same_up_to_constants_that_were_rounded_to_float32() -> None:
    x = torch.rand(100, dtype=torch.float64) + 1
    third = float(torch.tensor(1 / 3))
    assert same_in_float64(x * third, x / 3)
    assert not same_in_float64(x * 0.3334, x / 3)
    assert same_in_float64(torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, torch.inf]))
    assert not same_in_float64(torch.tensor([1, 2]), torch.tensor([1, 3]))


def test_a_program_in_float64_rounds_no_constant_to_float32() -> None:
    x = torch.rand(100, dtype=torch.float64)
    wrong = x * (1 + 1e-12)
    assert same_in_float64(wrong, x)
    assert not same_in_float64(wrong, x, double=True)
    assert same_in_float64(x / 3 * 3, x, double=True)
    judged = differ_in_float64(lambda _arithmetic, _seed: x * (1 + 1e-15), wrong, x, double=True)
    assert judged.outcome is Outcome.WRONG
    judged = differ_in_float64(lambda _arithmetic, seed: x * (1 + (-1) ** seed * 1e-12), wrong, x, double=True)
    assert judged.outcome is Outcome.RIGHT


def test_a_choice_that_rounding_decides_is_asked_about_more_than_three_times_in_float64() -> None:
    x = torch.ones(4, dtype=torch.float64)
    asked: list[int] = []

    def seldom(_arithmetic: Arithmetic, seed: int) -> torch.Tensor:
        asked.append(seed)
        return x + (0.01 if seed == 7 else 0.001)

    assert differ_in_float64(seldom, x + 0.02, x).outcome is Outcome.RIGHT
    assert differ_in_float64(seldom, x + 0.04, x).outcome is Outcome.WRONG
    asked.clear()
    assert differ_in_float64(seldom, x + 0.3, x).outcome is Outcome.WRONG
    assert len(asked) == 3  # So far off that nothing more is asked.


@pytest.mark.parametrize("lost", [torch.inf, torch.nan])
def test_a_number_that_is_none_in_float64_is_not_the_same(lost: float) -> None:
    numbers = torch.ones(4, dtype=torch.float64)
    others = torch.tensor([1.0, 1.0, 1.0, lost], dtype=torch.float64)
    assert same_in_float64(numbers + 1e-12, numbers)
    assert not same_in_float64(numbers, others)
    assert not same_in_float64(others, numbers)
    assert same_in_float64(others, others.clone())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64])
def test_a_result_is_another_if_it_is_off_as_a_whole_and_several_times_as_far_as_eager(dtype: torch.dtype) -> None:
    exact = torch.randn(1000, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    imprecise, other = ((exact * factor).to(dtype) for factor in (1.02, 1.5))
    assert is_another(imprecise, exact)
    assert not is_another(imprecise, exact, eager=imprecise)
    assert is_another(other, exact, eager=imprecise)
    assert not is_another(exact.to(dtype), exact)
    assert is_another(exact[:1].to(dtype), exact)
    assert is_another(torch.full_like(imprecise, torch.nan), exact)
