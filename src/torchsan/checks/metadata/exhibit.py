"""What a reproducer of an operator that is not what it says needs: the one call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchsan.graphs.data import Keep
from torchsan.graphs.encode import encode_call, given_tensor
from torchsan.records import Exhibit, Finding, Given
from torchsan.torch_internals.fakes import known_number
from torchsan.torch_internals.operators import undisturbed


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
    if isinstance(value, float) and not math.isfinite(value):
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


def exhibit_of_call(
    overload: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    finding: Finding,
    keep: Keep,
    config: Mapping[str, Any],
) -> Exhibit:
    """Return the call by itself. Tensors without data are given by their metadata."""
    inputs: list[Given] = []
    known: dict[int, str] = {}

    def given(t: torch.Tensor) -> Any:
        if id(t) not in known:
            known[id(t)] = f"x{len(inputs)}"
            inputs.append(_given(known[id(t)], t, keep))
        return {"node": known[id(t)]}

    with undisturbed():
        call = encode_call("result", overload, args, kwargs, given, known_number)
    return Exhibit(
        finding=finding.id,
        check=finding.check,
        nodes=(call,),
        inputs=tuple(inputs),
        outputs=("result",),
        suspects=("result",),
        grad=any(g.requires_grad for g in inputs),
    )


def _given(name: str, t: torch.Tensor, keep: Keep) -> Given:
    if type(t) in (torch.Tensor, torch.nn.Parameter):
        return given_tensor(name, t, keep)
    return Given(
        name=name,
        dtype=str(t.dtype).removeprefix("torch."),
        size=tuple(known_number(n) for n in t.shape),
        stride=tuple(known_number(n) for n in t.stride()),
        requires_grad=t.requires_grad,
    )
