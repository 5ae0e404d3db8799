"""Copies of inputs that overlap as the inputs do, and what makes a call one to look at."""

from __future__ import annotations

import torch

from torchsan.reference.inputs import Inputs, fingerprint


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
