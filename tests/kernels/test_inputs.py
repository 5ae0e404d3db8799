"""Trials: inputs that stay within what the example implies, and can be made again."""

from __future__ import annotations

from itertools import islice

import torch

from torchsan.kernels.inputs import Example, Trial, flatten, plan


def test_sizes_that_are_equal_stay_equal_and_numbers_follow_them() -> None:
    example = Example.of((torch.randn(12, 20), torch.randn(20), 20, 240, 3))
    assert example.symbols == (12, 20)
    x, w, n, total, other = example.make(Trial(seed=1, sizes=(5, 7)))
    assert x.shape == (5, 7) and w.shape == (7,) and (n, total, other) == (7, 35, 3)
    assert example.make(Trial(seed=1, sizes=(5, 7), tied=False))[2] == 20


def test_a_trial_is_made_again_byte_for_byte() -> None:
    example = Example.of((torch.randn(4, 6), torch.arange(6)))
    for trial in islice(plan(example, 0, seeds=32, function=False), 60):
        if not trial.given:
            one, two = example.make(trial), example.make(trial)
            assert all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(one, two, strict=True))
            assert one[0].dtype is getattr(torch, trial.dtype or "float32") and one[0].dim() == 2


def test_there_are_many_ordinary_trials_before_the_exotic_ones() -> None:
    trials = list(islice(plan(Example.of((torch.randn(30, 40),)), 0, seeds=32, function=False), 40))
    assert sum(not t.exotic for t in trials) >= 24
    assert {t.layout for t in trials} >= {"offset", "transposed"} and {0} <= {s for t in trials for s in t.sizes or ()}
    assert len({t.seed for t in trials}) == len(trials)


def test_layouts_dtypes_and_signs_are_tried_where_they_apply() -> None:
    flat = list(islice(plan(Example.of((torch.rand(40),)), 0, seeds=32, function=False), 60))
    assert {t.layout for t in flat} == {"as given", "offset", "every second"}
    assert {t.dtype for t in flat} == {None, "float64", "bfloat16", "float16"}
    negative = next(t for t in flat if t.values == "other sign")
    example = Example.of((torch.rand(40), torch.randint(0, 9, (40,))))
    assert negative.exotic and bool((example.make(negative)[0] < 0).all())
    half = example.make(Trial(seed=1, dtype="float16"))
    assert half[0].dtype is torch.float16 and half[1].dtype is torch.int64 and Trial(seed=1, dtype="float16").exotic
    images = list(islice(plan(Example.of((torch.randn(2, 3, 8, 9),)), 0, seeds=32, function=False), 60))
    assert "channels last" in {t.layout for t in images} and "other sign" not in {t.values for t in images}


def test_values_keep_the_examples_range() -> None:
    mask, index, positive = torch.randn(40) > 0, torch.randint(0, 9, (40,)), torch.rand(40)
    made = Example.of((mask, index, positive)).make(Trial(seed=3))
    assert made[0].dtype is torch.bool and int(made[1].min()) >= 0 and int(made[1].max()) <= 8
    assert bool((made[2] >= 0).all())


def test_offsets_and_tables_are_kept() -> None:
    table = torch.outer(torch.arange(6.0) + 0.5, torch.rand(4)).repeat(1, 2)
    example = Example.of((torch.tensor([0, 3, 7, 20]), table, torch.randn(20)))
    made = example.make(Trial(seed=2))
    assert example.fixed and torch.equal(made[0], example.leaves[0]) and torch.equal(made[1], table)
    assert not torch.equal(made[2], example.leaves[2])


def test_the_same_tensor_twice_stays_the_same() -> None:
    x = torch.randn(5)
    made = Example.of((x, x)).make(Trial(seed=0))
    assert made[0] is made[1]


def test_leaves_are_put_back() -> None:
    leaves, rebuild = flatten(({"a": [1, 2]}, (3,)))
    assert leaves == [1, 2, 3] and rebuild([4, 5, 6]) == ({"a": [4, 5]}, (6,))
