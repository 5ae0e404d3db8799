"""PyTorch's own database of operators: which there are, and arguments for them."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchsan.errors import UsageError

if TYPE_CHECKING:
    import torch

DATABASE_MODULE = "torch.testing._internal.common_methods_invocations"
_CONSIDERED = 40
"""Samples of an operator from which some are chosen; a few operators have thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operator, under the name that it has in Python. `dtypes` are those it takes on CPU.

    `gradients` are those of them for which it has gradients. `shape` is "unary", "binary" or "reduction" where
    that says what arguments it takes, else empty.
    """

    name: str
    variant: str
    dtypes: frozenset[str]
    gradients: frozenset[str]
    shape: str


@functools.cache
def _database() -> dict[tuple[str, str], Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from torch.testing._internal.common_methods_invocations import op_db
        except ImportError as e:
            raise UsageError(
                f"PyTorch's operator database cannot be imported: {e}; pip install 'torchsan[sweep]'", slug="no-module"
            ) from e
    # Those of jiterator need a GPU.
    return {(op.name, op.variant_test_name): op for op in op_db if "jiterator" not in op.name}


def entries() -> list[Entry]:
    """Return all operators of the database."""
    return [_entry(op) for op in _database().values()]


def _entry(op: Any) -> Entry:
    shapes = {"UnaryUfuncInfo": "unary", "BinaryUfuncInfo": "binary", "ReductionOpInfo": "reduction"}
    dtypes = {str(d).removeprefix("torch.") for d in op.supported_dtypes("cpu")}
    gradients = {str(d).removeprefix("torch.") for d in op.supported_backward_dtypes("cpu")}
    return Entry(
        name=op.name,
        variant=op.variant_test_name,
        dtypes=frozenset(dtypes),
        gradients=frozenset(gradients & dtypes) if op.supports_autograd else frozenset(),
        shape=shapes.get(type(op).__name__, ""),
    )


def function_of(name: str, variant: str) -> Any:
    """Return what calls the operator."""
    return _database()[name, variant].op


def samples_of(
    name: str, variant: str, dtype: torch.dtype, count: int, *, requires_grad: bool
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the arguments of calls, from the first to the last of those that PyTorch tests the operator with."""
    op = _database()[name, variant]
    found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), _CONSIDERED))
    last = len(found) - 1
    for place in dict.fromkeys(round(last * n / max(1, count - 1)) for n in range(count)) if found else ():
        sample = found[place]
        yield (sample.input, *sample.args), dict(sample.kwargs)
