"""Faults of every size: an operator times 1 + error, in a kernel, a library call, a decomposition or a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config
import torch._inductor.decomposition
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch._inductor.select_algorithm import extern_kernels

Site = Callable[[str, float], Any]
"""Plants a fault: the name of an operator, and by how much its result is too large."""


@contextmanager
def in_kernel(op: str, error: float) -> Iterator[None]:
    """The C++ of an elementwise operator is off."""
    with torch._inductor.config.patch(force_disable_caches=True):
        undo = []
        for overrides in (CppOverrides, CppVecOverrides):
            real = vars(overrides)[op]
            undo.append((overrides, real))
            setattr(overrides, op, staticmethod(_scaled_text(real.__func__, error)))
        try:
            yield
        finally:
            for overrides, real in undo:
                setattr(overrides, op, real)


def _scaled_text(real: Callable[..., str], error: float) -> Callable[..., str]:
    return lambda *args: f"(({real(*args)}) * decltype({real(*args)})({1 + error!r}))"


@contextmanager
def in_library(op: str, error: float) -> Iterator[None]:
    """A library call, `mm` or `addmm`, is off."""
    real = getattr(extern_kernels, op)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs).mul_(1 + error)

    with patch.object(extern_kernels, op, wrong):
        yield


@contextmanager
def in_decomposition(op: str, error: float) -> Iterator[None]:
    """What AOTAutograd puts in the place of an operator is off."""
    target = getattr(torch.ops.aten, op).default
    table = torch._inductor.decomposition.decompositions
    real = table.get(target, target)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs) * (1 + error)

    with patch.dict(table, {target: wrong}):
        torch._inductor.decomposition.fast_random_decomps.cache_clear()
        yield
    torch._inductor.decomposition.fast_random_decomps.cache_clear()


def _pass(op: str, error: float) -> Callable[[torch.fx.Graph], None]:
    def scale(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if getattr(node.target, "_opname", None) == op:
                with graph.inserting_after(node):
                    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (node, 1 + error))
                scaled.meta.update(node.meta)
                node.replace_all_uses_with(scaled, delete_user_cb=lambda user, s=scaled: user is not s)

    return scale


@contextmanager
def in_post_grad_pass(op: str, error: float) -> Iterator[None]:
    """A pass over the graph of one direction multiplies an operator's result."""
    with torch._inductor.config.patch(post_grad_custom_post_pass=_pass(op, error)):
        yield


@contextmanager
def in_joint_pass(op: str, error: float) -> Iterator[None]:
    """A pass over the joint graph multiplies an operator's result."""
    with torch._inductor.config.patch(joint_custom_post_pass=_pass(op, error)):
        yield


SITES: dict[str, tuple[Site, str]] = {
    "kernel": (in_kernel, "kernel"),
    "library": (in_library, "kernel"),
    "decomposition": (in_decomposition, "aot"),
    "joint": (in_joint_pass, "joint-passes"),
    "post-grad": (in_post_grad_pass, "post-grad-passes"),
}
"""Where a fault can be, and the stage that a finding about it has."""


def residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One addend of two goes through the operator: a wrong factor of it goes both ways in the sum."""
    return x + 0.5 * torch.tanh(x @ w)


def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Decomposed by AOTAutograd."""
    return x + torch.nn.functional.silu(x * w)
