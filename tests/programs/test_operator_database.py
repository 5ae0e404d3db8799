"""PyTorch's own operator database, compiled one operator at a time: no `error` but PyTorch's own bugs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchsan

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
SAMPLES = 3

# What torchsan reports of them is a bug of PyTorch 2.13, looked at by hand and listed in docs/found-bugs.md.
PYTORCH_IS_WRONG = {("var_mean", "unbiased"), ("std_mean", "unbiased"), ("pinverse", ""), ("linalg.pinv", "")}

EVERY_DAY = frozenset(
    """amin as_strided_scatter clamp cumsum diagonal_scatter empty_like index_add logsumexp nn.functional.gelu
    remainder""".split()
)


def operators(dtype: torch.dtype) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if dtype in op.supported_dtypes("cpu")]


def samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    found = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        found.append(sample)
        if len(found) == 40:
            break
    for i in sorted({0, len(found) // 2, len(found) - 1}) if found else []:
        yield found[i]


def errors(op: Any, dtype: torch.dtype) -> list[str]:
    def call(args: Any, kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    with torchsan.session(check="values") as run:
        for sample in samples(op, dtype):
            torch.manual_seed(0)
            torch._dynamo.reset()
            try:
                torch.compile(call, dynamic=False)((sample.input, *sample.args), sample.kwargs)
            except Exception:  # noqa: BLE001  # what does not compile is not ours to check
                continue
    return [f.message for f in run.findings if f.severity == "error"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[] if d is torch.float32 else [pytest.mark.slow]) for d in DTYPES]
)
def test_no_error_on_a_few_operators(dtype: torch.dtype) -> None:
    found = {op.name: errors(op, dtype) for op in operators(dtype) if op.name in EVERY_DAY}
    assert found
    assert not any(found.values()), found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(16))
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_error_on_any_operator(dtype: torch.dtype, part: int) -> None:
    wrong = {}
    for op in operators(dtype)[part::16]:
        found = errors(op, dtype)
        if found and (op.name, op.variant_test_name) not in PYTORCH_IS_WRONG:
            wrong[op.name] = found
    assert not wrong
