"""A call made again: on copies that overlap as its inputs do, in each arithmetic, with the same random numbers."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.compile_fx  # what a compile has imported, and a twin may not
from torch.utils._debug_mode import DebugMode  # as programs use it that save its logs

from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.calls import Circumstances, Inputs, RepeatableCall, fingerprint
from torchsan.reference.twin import Call, Twin
from torchsan.torch_internals.operators import random_state


def test_inputs_that_overlap_have_copies_that_overlap() -> None:
    base = torch.arange(8.0)
    x, y = base[:4], base[2:6]
    for wide in (False, True):
        (a, b), _ = Inputs([x, y], frozenset({0})).copies(wide=wide)
        a.mul_(10)
        assert b.tolist() == [20, 30, 4, 5]
    assert base.tolist() == list(range(8))


def test_strides_are_kept_also_those_of_an_expanded_tensor() -> None:
    turned, wide = torch.randn(3, 5).t(), torch.randn(4, 1).expand(4, 6)
    (a, b), _ = Inputs([turned, wide], frozenset()).copies(wide=True)
    assert (a.stride(), b.stride()) == (turned.stride(), wide.stride())
    assert torch.equal(a.float(), turned)
    assert torch.equal(b.float(), wide)


def test_a_parameter_that_is_not_written_is_held_and_one_that_is_is_copied() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    (held,), (leaf,) = Inputs([parameter], frozenset()).copies(wide=False)
    assert held.data_ptr() == parameter.data_ptr()
    assert leaf is held
    (copied,), _ = Inputs([parameter], frozenset({0})).copies(wide=False)
    assert copied.data_ptr() != parameter.data_ptr()


def test_a_parameter_written_meanwhile_makes_the_inputs_stale() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    inputs = Inputs([parameter], frozenset())
    assert not inputs.stale()
    with torch.no_grad():
        parameter.add_(1)
    assert inputs.stale()


def test_overlap_and_strides_change_the_fingerprint_and_values_do_not() -> None:
    base = torch.zeros(8)
    apart, shared = (torch.zeros(4), torch.zeros(4)), (base[:4], base[2:6])
    assert fingerprint(apart) == fingerprint((torch.ones(4), torch.ones(4)))
    assert fingerprint(apart) != fingerprint(shared)
    assert fingerprint(shared) != fingerprint((base[:4], base[1:5]))
    assert fingerprint((base[::2],)) != fingerprint((base[:4],))


@pytest.mark.parametrize("arithmetic", [None, *Arithmetic])
def test_a_call_made_again_gives_outputs_changed_inputs_and_aliases_and_leaves_no_trace(
    arithmetic: Arithmetic | None,
) -> None:
    def function(args: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return args[0].mul_(3), args[1].sin()

    x, y = torch.ones(3), torch.rand(3)
    state = torch.get_rng_state()
    results = RepeatableCall([x, y], ["x", "y"], frozenset({0})).run(function, arithmetic)
    assert x.tolist() == [1.0] * 3
    assert torch.equal(torch.get_rng_state(), state)
    changed = results.tensors["x after the call"]
    assert changed is not None
    torch.testing.assert_close(changed.float(), torch.full((3,), 3.0))
    assert results.aliases == {("output 0", "x")}
    assert changed.dtype is (torch.float64 if arithmetic in (Arithmetic.EXACT, Arithmetic.ROUGH) else torch.float32)


def test_gradients_are_those_of_the_inputs() -> None:
    x = torch.rand(3, requires_grad=True)
    call = RepeatableCall([x], ["x"], frozenset())
    results = call.run(lambda args: args[0].square(), Arithmetic.EXACT, cotangents={"output 0": torch.ones(3)})
    gradient = results.tensors["gradient of x"]
    assert gradient is not None
    assert torch.equal(gradient, 2 * x.detach().double())


def test_a_random_operator_and_its_decomposition_draw_the_same_numbers() -> None:
    call = RepeatableCall([torch.ones(5, 4).t()], ["x"], frozenset())
    whole = call.run(lambda args: torch.nn.functional.dropout(args[0], 0.3), Arithmetic.EAGER)
    parts = call.run(lambda args: (torch.rand_like(args[0]) > 0.3) * args[0] / 0.7, Arithmetic.EAGER)
    assert whole.draws == parts.draws == 1
    torch.testing.assert_close(whole.tensors["output 0"], parts.tensors["output 0"])


def test_constant_random_numbers_do_not_depend_on_their_order() -> None:
    call = RepeatableCall([torch.ones(2)], ["x"], frozenset())

    def drawn(first: int) -> torch.Tensor:
        def function(_: list[torch.Tensor]) -> torch.Tensor:
            pair = [torch.rand(2), torch.rand(2)]
            return pair[first] - 2 * pair[1 - first]

        found = call.run(function, Arithmetic.EAGER, constant=True).tensors["output 0"]
        assert found is not None
        return found

    assert torch.equal(drawn(0), drawn(1))


def test_an_operator_that_looks_at_bits_has_no_meaning_in_float64() -> None:
    call = RepeatableCall([torch.ones(2)], ["x"], frozenset())
    with pytest.raises(Unavailable, match="bits"):
        call.run(lambda args: args[0].view(torch.int32), Arithmetic.EXACT)


def test_what_a_program_logs_of_its_operators_has_none_of_torchsans() -> None:
    with DebugMode() as debug:
        Circumstances.now()
        random_state()
    assert debug.logs == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_twin_gives_gradients_in_float64(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, dtype=dtype)
    x = torch.randn(3, 5, 8, dtype=dtype, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(layer(x, x, x, need_weights=False)[0], layer.out_proj.weight).tanh().square()

    call = Call(function, (x,), {})
    twin = Twin(call)
    wanted = frozenset(call.before.tensors)
    cotangent = torch.ones(3, 5, 8, dtype=dtype)
    found = twin.again(Arithmetic.EXACT, 0, ({"output 0": cotangent}, ()), wanted)
    twin.close()
    assert layer.in_proj_weight.dtype == dtype
    wide = x.detach().double().requires_grad_()
    layer.double()
    names = ("in_proj_weight", "out_proj.weight")
    expected = torch.autograd.grad(function(wide).sum(), [layer.in_proj_weight, layer.out_proj.weight])
    for name, gradient in zip(names, expected, strict=True):
        (given,) = [g for n, g in found.items() if n.endswith(name)]
        torch.testing.assert_close(given, gradient, rtol=1e-12, atol=1e-12)
