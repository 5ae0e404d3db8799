"""Operators with one planted mistake each, and their clean twins. `wrong_X` is wrong in X, `right_X` is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["LIBRARY", "Planted", "operator"]

LIBRARY = "planted"
_library: Any = torch.library.Library(LIBRARY, "DEF")


class Planted:
    """An operator: its schema after the name, its real and its fake kernel; a meta kernel that is not the fake one."""

    def __init__(
        self,
        schema: str,
        real: Callable[..., Any],
        fake: Callable[..., Any] | None,
        meta: Callable[..., Any] | None = None,
    ) -> None:
        self.schema, self.real, self.fake, self.meta = schema, real, fake, meta


def like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def double(x: torch.Tensor) -> torch.Tensor:
    return (x.detach() * 2).to(x.dtype)


def _writes(change: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def real(x: torch.Tensor) -> torch.Tensor:
        result = double(x)
        change(x.detach())
        return result

    return real


def _sprinkle(x: torch.Tensor) -> None:
    """Change the payload of a NaN: no comparison of numbers can see it."""
    x.view(torch.int32).flatten()[0] = 0x7FC00001


def _nudge(x: torch.Tensor) -> None:
    x.flatten()[0] += 1e-7


def _offset(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.numel() + 4).as_strided(x.shape, x.stride(), 4)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    both = double(x)
    return both, both.view(x.shape)


def _symbolic_slip(x: torch.Tensor) -> torch.Tensor:
    """Right for numbers, wrong for symbols: the usual slip of a kernel that tests the type of a size."""
    rows = x.shape[0] if isinstance(x.shape[0], int) else x.shape[0] + 1
    return x.new_empty([rows, *x.shape[1:]])


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


def _positive_fake(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def fake(x: torch.Tensor) -> torch.Tensor:
        size: Any = torch.library.get_ctx().new_dynamic_size()
        return x.new_empty([size], dtype=dtype)

    return fake


ONE = "(Tensor x) -> Tensor"
PLANTED: dict[str, Planted] = {
    "right": Planted(ONE, double, like),
    "wrong_size": Planted(ONE, double, lambda x: x.new_empty([x.shape[0] + 1, *x.shape[1:]])),
    "wrong_rank": Planted(ONE, double, lambda x: x.new_empty([x.numel()])),
    "wrong_dtype": Planted(ONE, lambda x: double(x).double(), like),
    "wrong_stride": Planted(ONE, lambda x: double(x).t().contiguous().t(), lambda x: x.new_empty(x.shape)),
    "wrong_offset": Planted(ONE, _offset, like),
    "wrong_layout": Planted(ONE, lambda x: double(x).to_sparse(), like),
    "wrong_device": Planted(ONE, double, lambda x: x.new_empty(x.shape, device="cuda")),
    "wrong_requires_grad": Planted(ONE, lambda x: double(x).requires_grad_(), like),
    "wrong_none": Planted("(Tensor x) -> Tensor?", lambda x: None, like),
    "right_none": Planted("(Tensor x) -> Tensor?", lambda x: None, lambda x: None),
    "wrong_number": Planted("(Tensor x) -> Tensor[]", lambda x: [double(x), double(x)], lambda x: [like(x)]),
    "right_number": Planted("(Tensor x) -> Tensor[]", lambda x: [double(x), double(x)], lambda x: [like(x), like(x)]),
    "right_tuple": Planted(
        "(Tensor x) -> (Tensor, Tensor)", lambda x: (double(x), double(x)), lambda x: (like(x), like(x))
    ),
    "wrong_second": Planted(
        "(Tensor x) -> (Tensor, Tensor)", lambda x: (double(x), double(x).double()), lambda x: (like(x), like(x))
    ),
    "wrong_view": Planted("(Tensor(a) x) -> Tensor(a)", lambda x: x.view(x.shape), like),
    "right_view": Planted("(Tensor(a) x) -> Tensor(a)", lambda x: x.view(x.shape), lambda x: x.view(x.shape)),
    "wrong_fake_view": Planted(ONE, double, lambda x: x.view(x.shape)),
    "wrong_alias": Planted(ONE, lambda x: x.view(x.shape), like),
    "wrong_alias_of_outputs": Planted("(Tensor x) -> (Tensor, Tensor)", _halves, lambda x: (like(x), like(x))),
    "wrong_mutation": Planted(ONE, _writes(lambda x: x.add_(1)), like),
    "wrong_small_mutation": Planted(ONE, _writes(_nudge), like),
    "wrong_nan_mutation": Planted(ONE, _writes(_sprinkle), like),
    "wrong_data_mutation": Planted(ONE, _writes(lambda x: x.data.zero_()), like),
    "right_mutation": Planted("(Tensor(a!) x) -> Tensor", _writes(lambda x: x.add_(1)), like),
    "wrong_declaration": Planted("(Tensor(a!) x) -> Tensor", double, like),
    "wrong_symbolic": Planted(ONE, double, _symbolic_slip),
    "right_dynamic": Planted(ONE, _positive, _positive_fake(torch.float32)),
    "wrong_dynamic": Planted(ONE, _positive, _positive_fake(torch.float64)),
    "right_meta": Planted(ONE, double, like, meta=lambda x: x.new_empty(x.shape).as_strided(x.shape, x.stride())),
    "wrong_meta": Planted(ONE, double, like, meta=lambda x: torch.empty_like(x, dtype=torch.float64)),
    "without_fake": Planted(ONE, double, None),
}

for _name, _planted in PLANTED.items():
    _library.define(f"{_name}{_planted.schema}")
    _library.impl(_name, _planted.real, "CPU")
    if _planted.fake is not None:
        torch.library.register_fake(f"{LIBRARY}::{_name}", _planted.fake, lib=_library)
    if _planted.meta is not None:
        # `register_fake` has put the fake kernel there.
        _library.impl(_name, _planted.meta, "Meta", allow_override=True)


def operator(name: str) -> Any:
    return getattr(getattr(torch.ops, LIBRARY), name).default
