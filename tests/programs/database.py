"""PyTorch's own operator database under the check: every operator on its own sample inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from torchsan.calls import crossref
from torchsan.records import Finding

__all__ = ["DTYPES", "entries", "look_at"]

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)


def entries() -> list[Any]:
    """The entries of the database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _samples(entry: Any, dtype: torch.dtype, most: int) -> Iterator[Any]:
    for n, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=False)):
        if n >= most:
            return
        yield sample


def look_at(entry: Any, dtype: torch.dtype, most: int = 6) -> tuple[Finding, ...]:
    """The findings on an entry's first samples; none where the entry does not take the dtype."""
    if not entry.supports_dtype(dtype, "cpu") or "jiterator" in entry.name:  # Those need a GPU.
        return ()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with crossref() as run:
            for sample in _samples(entry, dtype, most):
                try:
                    entry.op(sample.input, *sample.args, **sample.kwargs)
                except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError):
                    continue  # Some samples need what this build does not have.
    return run.findings
