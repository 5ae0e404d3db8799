"""What oneDNN's and MKL's operators on packed weights compute, in operators that every arithmetic knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchsan.reference.arithmetic import Unavailable

Call = Callable[..., Any]
"""Computes an operator: its overload, then its arguments."""

aten = torch.ops.aten


def is_packed(value: Any) -> bool:
    """Whether a value is a tensor in a form of oneDNN's own. What is in it depends on the operator that it is for."""
    return isinstance(value, torch.Tensor) and value.is_mkldnn


def in_plain_operators(name: str) -> Callable[..., Any] | None:
    """A function of `call` and of the arguments of an operator on packed weights; None if it is none of these."""
    return _MEANINGS.get(name)


def _linear(call: Call, x: Any, weight: Any, bias: Any) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    product = (
        call(aten.mm.default, rows, weight.t()) if bias is None else call(aten.addmm.default, bias, rows, weight.t())
    )
    return product.reshape(*x.shape[:-1], product.shape[-1])


def _mkl_linear(call: Call, x: Any, _packed: Any, weight: Any, bias: Any, _batch: Any = None) -> Any:
    return _linear(call, x, weight, bias)


def _linear_then(call: Call, x: Any, weight: Any, bias: Any, then: str, scalars: Sequence[Any], how: str | None) -> Any:
    return _then(call, _linear(call, x, weight, bias), then, scalars, how)


def _linear_with(call: Call, x: Any, other: Any, weight: Any, bias: Any, operator: str) -> Any:
    return _with(call, _linear(call, x, weight, bias), other, operator)


def _convolution(
    call: Call, x: Any, weight: Any, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int
) -> Any:
    flat = [0] * len(padding)
    return call(aten.convolution.default, x, weight, bias, stride, padding, dilation, False, flat, groups)


def _convolution_then(call: Call, *given: Any) -> Any:
    *convolution, then, scalars, how = given
    return _then(call, _convolution(call, *convolution), then, scalars, how)


def _convolution_with(call: Call, x: Any, other: Any, *given: Any) -> Any:
    *convolution, operator, alpha, then, scalars, how = given
    if alpha not in (None, 1.0):
        raise Unavailable(f"a convolution with an operand times {alpha} is not known here")
    result = _with(call, _convolution(call, x, *convolution), other, operator)
    return result if then is None else _then(call, result, then, scalars, how)


def _with(call: Call, result: Any, other: Any, operator: str) -> Any:
    known = {"add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor}
    if operator not in known:
        raise Unavailable(f"what {operator} is in oneDNN is not known here")
    return call(known[operator], result, other)


def _then(call: Call, x: Any, then: str, scalars: Sequence[Any], how: str | None) -> Any:
    """A function of each element, as oneDNN names it."""
    match then:
        case "none":
            return x
        case "gelu":
            return call(aten.gelu.default, x, approximate=how or "none")
        case "hardtanh" | "leaky_relu":
            return call(getattr(aten, then).default, x, *scalars)
        case "swish":
            return call(aten.silu.default, x)
        case "relu" | "sigmoid" | "tanh" | "hardswish" | "hardsigmoid":
            return call(getattr(aten, then).default, x)
        case _:
            raise Unavailable(f"what {then} is in oneDNN is not known here")


_MEANINGS: dict[str, Callable[..., Any]] = {
    "mkl._mkl_linear.default": _mkl_linear,
    "mkldnn._linear_pointwise.default": _linear_then,
    "mkldnn._linear_pointwise.binary": _linear_with,
    "mkldnn._convolution_pointwise.default": _convolution_then,
    "mkldnn._convolution_pointwise.binary": _convolution_with,
}
