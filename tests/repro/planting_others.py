"""Plants one fault of another check for good: what `--load` imports in every trial. Which one says TORCHSAN_TEST_FAULT.

Each works on whatever is compiled, whatever its kernels are called, because a reproducer is another program.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
from torch._inductor.decomposition import decompositions, fast_random_decomps

from tests.planted.plant import planted
from tests.planted.test_stages import bypass, drop, edit, halve_constant, right_tanh_backward, swap, wrong_silu

aten = torch.ops.aten
kept: list[object] = []

_END = r"(    inductor_cpu_integer_div_error_flag = nullptr;)"
MEMORY: dict[str, Callable[[str], str]] = {
    "out-of-bounds-write": lambda source: re.sub(_END, r"    out_ptr0[-1] = 7;\n\1", source, count=1),
    "uninitialized-read": lambda source: re.sub(r"(<static_cast<int64_t>\(\d+L)\)", r"\1 - 16L)", source, count=1),
    "leaked-buffer": lambda source: re.sub(
        r"\n( +)(buf0 = empty_strided_cpu\(.*\))",
        rf"\n\1\2\n\1__import__('{__name__}', fromlist=['kept']).kept.append(buf0)",
        source,
        count=1,
    ),
    "clobbered-buffer": lambda source: re.sub(r"buf1 = empty_strided_cpu\(.*\)", "buf1 = buf0", source, count=1),
    "early-free": lambda source: re.sub(
        r"\n( +)(extern_kernels\.mm\(buf0, .*)\n", r"\n\1del buf0\n\1\2\n", source, count=1
    ),
}


def _swap_any_difference(graph: torch.fx.Graph) -> None:
    """Before autograd the user's program subtracts with Python's operator, a reproducer with PyTorch's."""
    for target in (operator.sub, aten.sub.Tensor):
        edit(target, swap)(graph)


STAGES: dict[str, tuple[str, Any]] = {
    "joint_pre": ("joint_custom_pre_pass", edit(aten.mul.Tensor, halve_constant)),
    "joint_post": ("joint_custom_post_pass", edit(aten.sub.Tensor, swap)),
    "post_grad_pre": ("post_grad_custom_pre_pass", edit(aten.mul.Tensor, halve_constant)),
    "post_grad_post": ("post_grad_custom_post_pass", edit(aten.sub.Tensor, swap)),
    "pre_grad": ("pre_grad_custom_pass", _swap_any_difference),
    "dropped_mutation": ("post_grad_custom_post_pass", edit(aten.copy_.default, drop)),
    "output_is_an_input": ("joint_custom_post_pass", edit(aten.clone.default, bypass)),
}
DECOMPOSITIONS: dict[str, tuple[Any, Callable[..., torch.Tensor]]] = {
    "decomposition": (aten.silu.default, wrong_silu),
    "backward_decomposition": (aten.tanh_backward.default, lambda grad, y: right_tanh_backward(grad, y) * 1.5),
}

_library: Any = torch.library.Library("planting_others", "DEF")  # type: ignore[no-untyped-call]  # torch has no types for it


_library.define("change(Tensor(a!) x) -> ()")


def _change(x: torch.Tensor) -> None:
    x.mul_(2)
    if FAULT == "unexpected-allocation":
        x.untyped_storage().resize_(x.untyped_storage().nbytes() * 4)


def products() -> None:
    """Two products at the same time, and a product of what a fused kernel made."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.mm((x - y * 0.5).relu(), y).sin() * torch.mm(y, x).exp()

    with torch.no_grad():
        torch.compile(f)(torch.linspace(-1, 1, 256).view(16, 16), torch.linspace(0, 3, 256).view(16, 16))


def scales() -> None:
    """What passes are planted for: a constant, a difference, a copy, an input that is overwritten."""

    def f(x: torch.Tensor, y: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state.add_(1)
        return (x - y * 0.5).exp(), x.clone()

    with torch.no_grad():
        torch.compile(f)(torch.linspace(-1, 1, 8), torch.linspace(0, 3, 8), torch.zeros(3))


def curves() -> None:
    """What decompositions are planted for, forward and backward."""
    x, w = torch.linspace(-1, 1, 16).view(4, 4), torch.linspace(-1, 2, 16).view(4, 4).requires_grad_()
    y = torch.compile(lambda x, w: torch.nn.functional.silu(x @ w).tanh() * 3)(x, w)
    y.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types for it


def changes() -> None:
    """An operator that overwrites what it is given."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.ops.planting_others.change(y)
        return y.cos()

    torch.compile(f)(torch.arange(64.0))


FAULT = os.environ["TORCHSAN_TEST_FAULT"]
_library.impl("change", _change, "CPU")
_library.impl("change", lambda x: None, "Meta")
program, check = changes, "memory"
if FAULT in MEMORY:
    program = products
    _planted = planted(MEMORY[FAULT])
    _planted.__enter__()
elif FAULT in STAGES:
    program, check = scales, "stages"
    setattr(torch._inductor.config, *STAGES[FAULT])
elif FAULT in DECOMPOSITIONS:
    program, check = curves, "stages"
    decompositions.update([DECOMPOSITIONS[FAULT]])
    fast_random_decomps.cache_clear()  # A trial is a fork of a process that has compiled something.
