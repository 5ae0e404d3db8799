"""An operator against what Inductor puts in its place: the same metadata, and in float64 the same values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsan.checks.metadata.compare import Difference, compare_results
from torchsan.checks.metadata.facts import leaves
from torchsan.torch_internals.fakes import CannotFakeError, run_fake
from torchsan.torch_internals.operators import decomposition, undisturbed

__all__ = ["check_decomposition"]

_FIELDS = frozenset({"size", "dtype", "stride", "layout"})
_WIDER = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDER_COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def check_decomposition(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Difference] | None:
    """Return where the decomposition differs; None if there is none, or it cannot be compared for these arguments."""
    function = decomposition(overload)
    if function is None or overload._schema.is_mutable:
        return None
    with undisturbed(), torch.random.fork_rng(devices=[]):
        try:
            expected = overload(*args, **kwargs)
            found = compare_results(expected, run_fake(overload, args, kwargs, instead=function).result, fields=_FIELDS)
            if found or _random(overload):
                return found
            return _values(overload, function, args, kwargs)
        except (CannotFakeError, RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
            return None


def _random(overload: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in overload.tags or "empty" in str(overload)


def _values(overload: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Difference]:
    exact_args, exact_kwargs = pytree.tree_map_only(torch.Tensor, _exact, (args, kwargs))
    expected = overload(*exact_args, **exact_kwargs)
    actual = function(*exact_args, **exact_kwargs)
    if actual is NotImplemented:
        return []
    found = []
    for one, other in zip(leaves(expected), leaves(actual), strict=True):
        if not isinstance(one.value, torch.Tensor) or not isinstance(other.value, torch.Tensor):
            continue
        a, b = one.value, other.value
        if a.shape == b.shape and not torch.allclose(_double(a), _double(b), rtol=1e-7, atol=1e-9, equal_nan=True):
            worst = int((_double(a) - _double(b)).abs().nan_to_num(torch.inf).argmax())
            sides = (str(t.flatten()[worst].item()) for t in (a, b))
            found.append(Difference(what=f"output{one.path}", field="value", real=next(sides), believed=next(sides)))
    return found


def _exact(t: torch.Tensor) -> torch.Tensor:
    wider = _WIDER.get(t.dtype) or _WIDER_COMPLEX.get(t.dtype)
    return t.detach().to(wider) if wider is not None else t.detach()


def _double(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)
