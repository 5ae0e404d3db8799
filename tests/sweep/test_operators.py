"""Programs of operators: which there are, and what they call."""

from __future__ import annotations

import pytest
import torch

from torchsan.errors import UsageError
from torchsan.sweep.operators import Chosen, hard_calls, hard_numbers, operator_programs, sample_calls


def test_an_operator_has_a_program_for_each_dtype_and_way() -> None:
    names = [p.name for p in operator_programs(Chosen(globs=("amin", "nn.functional.gelu")))]
    assert "amin/uint8/forward" in names
    assert "amin/uint8/hard" in names
    assert "amin/uint8/backward" not in names, "integers have no gradients"
    assert "nn.functional.gelu/bfloat16/backward" in names
    assert len(names) == len(set(names))
    only = operator_programs(Chosen(globs=("amin",), dtypes=("float32",), ways=("forward",)))
    assert [p.name for p in only] == ["amin/float32/forward"]
    with pytest.raises(UsageError):
        operator_programs(Chosen(globs=("no such operator",)))


def test_samples_work_and_differ_in_shapes_and_strides() -> None:
    calls = list(sample_calls("add", "", torch.float32, 4))
    assert [dynamic for *_, dynamic in calls] == [False, True, False, True][: len(calls)]
    assert len(calls) == 4
    for op, args, kwargs, _ in calls:
        assert op(*args, **kwargs).dtype is torch.float32
    strided = [t for _, args, _, _ in calls[2:] for t in args if isinstance(t, torch.Tensor) and t.dim() > 1]
    assert any(not t.is_contiguous() for t in strided)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.int8, torch.complex64])
def test_hard_numbers_have_the_ends_of_the_range(dtype: torch.dtype) -> None:
    numbers = hard_numbers(dtype)
    assert numbers.dtype is dtype
    if dtype.is_complex:
        return
    about = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    assert about.max in numbers.tolist()
    if dtype.is_floating_point:
        assert bool(numbers.isnan().any())
        assert bool(numbers.isinf().any())


def test_hard_calls_are_all_pairs_or_rows() -> None:
    ((_, (a, b), _, _),) = hard_calls("add", "", torch.uint8, "binary")
    assert len(a) == len(hard_numbers(torch.uint8)) ** 2
    assert {(0, 0), (255, 255)} <= set(zip(a.tolist(), b.tolist(), strict=True))
    rows = [kwargs["dim"] for _, _, kwargs, _ in hard_calls("amin", "", torch.float32, "reduction")]
    assert rows == [-1, 0, 0]
