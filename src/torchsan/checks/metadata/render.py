"""A call as a line that can be pasted into Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchsan.torch_internals.fakes import known_number

__all__ = ["render_call"]


def render_call(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The call with each tensor as `torch.empty_strided(…)`."""
    words = [_value(a) for a in args] + [f"{k}={_value(v)}" for k, v in kwargs.items()]
    return f"torch.ops.{overload}({', '.join(words)})"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(_value(v) for v in value)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return repr(known_number(value))
    if isinstance(value, float) and value != value:
        return "float('nan')"
    if value in (float("inf"), -float("inf")) if isinstance(value, float) else False:
        return f"float({str(value)!r})"
    if isinstance(value, torch.Generator):
        return "torch.Generator()"
    return repr(value)


def _tensor(t: torch.Tensor) -> str:
    size = tuple(known_number(n) for n in t.shape)
    if t.layout is not torch.strided:
        return f"torch.empty({size}, dtype={t.dtype}, layout={t.layout})"
    stride = tuple(known_number(n) for n in t.stride())
    rest = f"dtype={t.dtype}"
    if t.device.type != "cpu":
        rest += f", device={str(t.device)!r}"
    if t.requires_grad:
        rest += ", requires_grad=True"
    text = f"torch.empty_strided({size}, {stride}, {rest})"
    offset = known_number(t.storage_offset())
    if offset:
        length = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 + offset if 0 not in size else offset
        text = f"torch.empty({length}, {rest}).as_strided({size}, {stride}, {offset})"
    return text + (".conj()" if t.is_conj() else "")
